/* SPDX-License-Identifier: MIT */
/* The interface of version 0.1 as programs have compiled it: this file must compile with every later
 * version of the header that keeps the file name libpeerbus.so.0.1. A new function gets a line here
 * and in symbols.txt. Members may be added to a structure at its end: the sizes here are the least. */
#include <stddef.h>

#include <peerbus.h>

#define AT(type, member, offset) \
  _Static_assert(offsetof(type, member) == (offset), "moved: " #type "." #member)
#define LEAST(type, bytes) _Static_assert(sizeof(type) >= (bytes), "smaller: " #type)
#define IS(name, value) _Static_assert((name) == (value), "changed: " #name)

/* clang-format off */
LEAST(peerbus_comm_options, 24);
AT(peerbus_comm_options, struct_bytes, 0);
AT(peerbus_comm_options, reserved, 4);
AT(peerbus_comm_options, timeout_ns, 8);
AT(peerbus_comm_options, meet_timeout_ns, 16);
LEAST(peerbus_place, 40);
AT(peerbus_place, struct_bytes, 0);
AT(peerbus_place, port, 4);
AT(peerbus_place, rank, 8);
AT(peerbus_place, size, 16);
AT(peerbus_place, address, 24);
AT(peerbus_place, job, 32);
LEAST(peerbus_origin, 8);
AT(peerbus_origin, token, 0);
AT(peerbus_origin, rank, 4);
AT(peerbus_origin, slot, 6);
LEAST(peerbus_row_use, 8);
AT(peerbus_row_use, row, 0);
AT(peerbus_row_use, slot, 4);
LEAST(peerbus_received, 200);
AT(peerbus_received, struct_bytes, 0);
AT(peerbus_received, by_rank, 4);
AT(peerbus_received, ticket, 8);
AT(peerbus_received, rows, 16);
AT(peerbus_received, end, 24);
AT(peerbus_received, row_capacity, 32);
AT(peerbus_received, ranks, 40);
AT(peerbus_received, blocks, 48);
AT(peerbus_received, experts, 56);
AT(peerbus_received, expert_ids, 64);
AT(peerbus_received, first_rows, 72);
AT(peerbus_received, counts, 80);
AT(peerbus_received, row_data, 88);
AT(peerbus_received, row_bytes, 96);
AT(peerbus_received, scales, 104);
AT(peerbus_received, scale_bytes, 112);
AT(peerbus_received, outputs, 120);
AT(peerbus_received, attachments, 128);
AT(peerbus_received, origins, 160);
AT(peerbus_received, slot_experts, 168);
AT(peerbus_received, slot_weights, 176);
AT(peerbus_received, use_starts, 184);
AT(peerbus_received, uses, 192);
LEAST(peerbus_exchange_config, 136);
AT(peerbus_exchange_config, struct_bytes, 0);
AT(peerbus_exchange_config, codec, 4);
AT(peerbus_exchange_config, layout, 8);
AT(peerbus_exchange_config, outputs_at_home, 12);
AT(peerbus_exchange_config, experts, 16);
AT(peerbus_exchange_config, hidden, 24);
AT(peerbus_exchange_config, top_k, 32);
AT(peerbus_exchange_config, max_tokens, 40);
AT(peerbus_exchange_config, in_flight, 48);
AT(peerbus_exchange_config, alignment, 56);
AT(peerbus_exchange_config, zero_gaps, 64);
AT(peerbus_exchange_config, reserved, 68);
AT(peerbus_exchange_config, attachments, 72);
AT(peerbus_exchange_config, output_attachment, 104);
AT(peerbus_exchange_config, note_bytes, 112);
AT(peerbus_exchange_config, physical_to_logical, 120);
AT(peerbus_exchange_config, stream_from, 128);
LEAST(peerbus_dispatch_args, 104);
AT(peerbus_dispatch_args, struct_bytes, 0);
AT(peerbus_dispatch_args, expert_id_bits, 4);
AT(peerbus_dispatch_args, count, 8);
AT(peerbus_dispatch_args, tokens, 16);
AT(peerbus_dispatch_args, experts, 24);
AT(peerbus_dispatch_args, weights, 32);
AT(peerbus_dispatch_args, attachments, 40);
AT(peerbus_dispatch_args, note, 72);
AT(peerbus_dispatch_args, waited_ns, 80);
AT(peerbus_dispatch_args, refuse, 88);
AT(peerbus_dispatch_args, reserved, 92);
AT(peerbus_dispatch_args, timeout_ns, 96);
LEAST(peerbus_combine_args, 80);
AT(peerbus_combine_args, struct_bytes, 0);
AT(peerbus_combine_args, attached, 4);
AT(peerbus_combine_args, count, 8);
AT(peerbus_combine_args, out, 16);
AT(peerbus_combine_args, weights, 24);
AT(peerbus_combine_args, bias, 32);
AT(peerbus_combine_args, local, 48);
AT(peerbus_combine_args, waited_ns, 56);
AT(peerbus_combine_args, refuse, 64);
AT(peerbus_combine_args, reserved, 68);
AT(peerbus_combine_args, timeout_ns, 72);
IS(PEERBUS_OK, 0);
IS(PEERBUS_INVALID_ARGUMENT, 1);
IS(PEERBUS_OUT_OF_RANGE, 2);
IS(PEERBUS_MISMATCH, 3);
IS(PEERBUS_OUT_OF_MEMORY, 4);
IS(PEERBUS_TIMED_OUT, 5);
IS(PEERBUS_PEER_DEAD, 6);
IS(PEERBUS_POISONED, 7);
IS(PEERBUS_REFUSED, 8);
IS(PEERBUS_UNSUPPORTED, 9);
IS(PEERBUS_SYSTEM, 10);
IS(PEERBUS_UNREACHABLE, 11);
IS(PEERBUS_INTERRUPTED, 64);
IS(PEERBUS_INTERNAL, 65);
IS(PEERBUS_ATTACHMENTS, 4);
IS(PEERBUS_BF16, 0);
IS(PEERBUS_INT8_PER_TOKEN, 1);
IS(PEERBUS_FP8_PER_128_F32, 2);
IS(PEERBUS_FP8_PER_128_ROUNDED, 3);
IS(PEERBUS_FP8_PER_128_UE8M0, 4);
IS(PEERBUS_FP8_AS_GIVEN, 5);
IS(PEERBUS_NO_ROWS, 6);
IS(PEERBUS_COMPACT, 0);
IS(PEERBUS_PADDED, 1);
IS(PEERBUS_RANK_MAJOR, 2);
IS(PEERBUS_SLOTS, 3);
IS(PEERBUS_EXPERT_SLOTS, 4);

/* A declaration that differs from that of the header does not compile. */
uint32_t peerbus_version(void);
const char *peerbus_code_text(peerbus_code code);
const char *peerbus_last_error(void);
int32_t peerbus_launched(void);
peerbus_code peerbus_comm_from_environment(const peerbus_comm_options *options, peerbus_comm **comm);
peerbus_code peerbus_comm_at(const peerbus_place *place, const peerbus_comm_options *options, peerbus_comm **comm);
peerbus_code peerbus_comm_subgroup(peerbus_comm *parent, const uint64_t *ranks, uint64_t count, const peerbus_comm_options *options, peerbus_comm **comm);
peerbus_code peerbus_run_threads(uint64_t ranks, peerbus_rank_function body, void *context, const peerbus_comm_options *options, int32_t *status);
peerbus_code peerbus_run_processes(uint64_t ranks, peerbus_rank_function body, void *context, const peerbus_comm_options *options, int32_t *status);
peerbus_code peerbus_comm_destroy(peerbus_comm **comm);
uint64_t peerbus_comm_rank(const peerbus_comm *comm);
uint64_t peerbus_comm_size(const peerbus_comm *comm);
peerbus_code peerbus_comm_barrier(peerbus_comm *comm, int64_t timeout_ns);
peerbus_code peerbus_comm_set_interrupt(peerbus_comm *comm, peerbus_interrupt_function interrupt, void *context);
peerbus_code peerbus_window_create(peerbus_comm *comm, uint64_t bytes, uint64_t signals, int64_t timeout_ns, peerbus_window **window);
void peerbus_window_destroy(peerbus_window **window);
uint64_t peerbus_window_bytes(const peerbus_window *window);
void *peerbus_window_part(const peerbus_window *window, uint64_t rank);
peerbus_code peerbus_window_put(peerbus_window *window, uint64_t peer, uint64_t offset, const void *source, uint64_t bytes);
peerbus_code peerbus_window_signal(peerbus_window *window, uint64_t peer, uint64_t id, uint64_t value);
peerbus_code peerbus_window_put_signal(peerbus_window *window, uint64_t peer, uint64_t offset, const void *source, uint64_t bytes, uint64_t id, uint64_t value);
peerbus_code peerbus_window_get(peerbus_window *window, uint64_t peer, uint64_t offset, void *target, uint64_t bytes);
peerbus_code peerbus_window_fetch_add(peerbus_window *window, uint64_t peer, uint64_t offset, uint64_t addend, uint64_t *before);
peerbus_code peerbus_window_flush(peerbus_window *window, uint64_t peer);
peerbus_code peerbus_window_wait(peerbus_window *window, uint64_t id, uint64_t value, uint64_t awaited, int64_t timeout_ns);
uint64_t peerbus_window_signal_value(const peerbus_window *window, uint64_t id);
peerbus_code peerbus_exchange_create(peerbus_comm *comm, const peerbus_exchange_config *config, int64_t timeout_ns, peerbus_exchange **exchange);
void peerbus_exchange_destroy(peerbus_exchange **exchange);
uint64_t peerbus_exchange_bytes(const peerbus_exchange *exchange);
peerbus_code peerbus_dispatch(peerbus_exchange *exchange, const peerbus_dispatch_args *args, peerbus_received *received);
peerbus_code peerbus_dispatch_send(peerbus_exchange *exchange, const peerbus_dispatch_args *args, uint64_t *ticket);
peerbus_code peerbus_dispatch_recv(peerbus_exchange *exchange, uint64_t ticket, int64_t *waited_ns, int64_t timeout_ns, peerbus_received *received);
peerbus_code peerbus_combine(peerbus_exchange *exchange, uint64_t ticket, const peerbus_combine_args *args);
peerbus_code peerbus_combine_send(peerbus_exchange *exchange, uint64_t ticket, const peerbus_combine_args *args);
peerbus_code peerbus_combine_recv(peerbus_exchange *exchange, uint64_t ticket, const peerbus_combine_args *args);
peerbus_code peerbus_output(peerbus_exchange *exchange, uint64_t ticket, uint64_t row, void **output);
peerbus_code peerbus_output_attachment(peerbus_exchange *exchange, uint64_t ticket, uint64_t row, void **attachment);
peerbus_code peerbus_decode(peerbus_exchange *exchange, uint64_t ticket, uint64_t row, float *values);
peerbus_code peerbus_note(peerbus_exchange *exchange, uint64_t ticket, uint64_t source, const void **note, uint64_t *bytes);
peerbus_code peerbus_returned_attachment(peerbus_exchange *exchange, uint64_t ticket, uint64_t token, uint64_t copy, uint64_t rank, const void **attachment);
typedef int32_t (*peerbus_rank_function)(peerbus_comm *comm, void *context);
typedef int32_t (*peerbus_interrupt_function)(void *context);
/* clang-format on */
