/* SPDX-License-Identifier: MIT */
/* Sends tokens to the ranks of their experts and brings the weighted sums home, in C. Four processes
 * of this host are the ranks, or those that a launcher started. Experts negate, so that the result
 * is known: the weights of a token add up to 1, and it comes home negated. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <peerbus.h>

enum { EXPERTS = 8, HIDDEN = 64, TOP_K = 2, TOKENS = 16 };

static int failed(const char *call) {
  fprintf(stderr, "%s: %s\n", call, peerbus_last_error());
  return 1;
}

static int32_t rank_program(peerbus_comm *comm, void *context) {
  (void)context;
  const uint64_t rank = peerbus_comm_rank(comm);
  const peerbus_exchange_config config = {.struct_bytes = sizeof config,
                                          .codec = PEERBUS_BF16,
                                          .layout = PEERBUS_COMPACT,
                                          .experts = EXPERTS,
                                          .hidden = HIDDEN,
                                          .top_k = TOP_K,
                                          .max_tokens = TOKENS};
  peerbus_exchange *exchange;
  if (peerbus_exchange_create(comm, &config, 0, &exchange)) return failed("create");

  uint16_t tokens[TOKENS][HIDDEN], sums[TOKENS][HIDDEN]; /* bf16: the upper half of a float */
  int32_t experts[TOKENS][TOP_K];
  float weights[TOKENS][TOP_K];
  for (uint32_t t = 0; t < TOKENS; ++t) {
    for (uint32_t h = 0; h < HIDDEN; ++h) tokens[t][h] = (uint16_t)(0x3f80 + (t + h + rank) % 64);
    for (uint32_t k = 0; k < TOP_K; ++k) {
      experts[t][k] = (int32_t)((t + 3 * k + rank) % EXPERTS);
      weights[t][k] = 0.5F;
    }
  }

  const peerbus_dispatch_args input = {.struct_bytes = sizeof input,
                                       .count = TOKENS,
                                       .tokens = tokens,
                                       .experts = experts,
                                       .weights = &weights[0][0]};
  peerbus_received received = {.struct_bytes = sizeof received};
  if (peerbus_dispatch(exchange, &input, &received)) return failed("dispatch");

  const uint16_t *rows = received.row_data;
  uint16_t *outputs = received.outputs; /* where combine reads them */
  for (uint64_t i = 0; i < received.end * HIDDEN; ++i) outputs[i] = rows[i] ^ 0x8000;

  const peerbus_combine_args output = {.struct_bytes = sizeof output, .count = TOKENS, .out = sums};
  if (peerbus_combine(exchange, received.ticket, &output)) return failed("combine");
  peerbus_exchange_destroy(&exchange);

  for (uint32_t t = 0; t < TOKENS; ++t)
    for (uint32_t h = 0; h < HIDDEN; ++h) tokens[t][h] ^= 0x8000;
  const int equal = memcmp(tokens, sums, sizeof sums) == 0;
  printf("rank %u of %u: %u rows, the sums are %s\n", (unsigned)rank,
         (unsigned)peerbus_comm_size(comm), (unsigned)received.rows, equal ? "right" : "wrong");
  return equal ? 0 : 1;
}

int main(void) {
  int32_t status = 1;
  peerbus_comm *comm = NULL;
  if (!peerbus_launched())
    return peerbus_run_processes(4, rank_program, NULL, NULL, &status) ? failed("run") : status;
  if (peerbus_comm_from_environment(NULL, &comm)) return failed("join");
  status = rank_program(comm, NULL);
  return peerbus_comm_destroy(&comm) ? failed("leave") : status;
}
