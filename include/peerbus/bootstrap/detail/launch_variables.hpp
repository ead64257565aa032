// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/detail/launch_ancestor.hpp>
#include <peerbus/bootstrap/launch_settings.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// The variables by which one launcher gives a process its place. A member is null if the launcher
/// has no such variable.
struct launcher_names {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* job;
  /// The variable without which the other variables are not meant for this process, or null.
  const char* required;
};

inline constexpr launcher_names launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", nullptr},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", nullptr},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID", nullptr},
    // A batch script also has SLURM_PROCID, although it is not a task of a step itself.
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, "SLURM_JOB_ID", "SLURM_STEP_ID"},
};

/// Returns the value of an environment variable, if it is set. `name` may be null.
inline std::optional<std::string_view> variable(const char* name) {
  const char* value = name == nullptr ? nullptr : std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string_view>{value};
}

/// The variable by which a user names the variable from which the rank is read.
inline constexpr const char* rank_choice = "PEERBUS_RANK_VARIABLE";

/// Returns whether Slurm's variables are those of an interactive shell, which has the number of
/// tasks of its allocation but is a single process. Such a shell is a step of its own. It has one
/// of the ids that Slurm keeps for steps without tasks (`slurm.h`), or one task instead of all.
inline bool is_shell_of_slurm() {
  constexpr std::uint32_t first_kept_id = 0xffff'fff0;
  const std::string_view step = variable("SLURM_STEP_ID").value_or("");
  std::uint32_t id = 0;
  const auto [stop, code] = std::from_chars(step.data(), step.data() + step.size(), id);
  const bool is_kept =
      code == std::errc{} && stop == step.data() + step.size() && id >= first_kept_id;
  return is_kept ||
         (variable("SLURM_STEP_NUM_TASKS") == "1" && variable("SLURM_NTASKS").value_or("1") != "1");
}

/// Returns whether the launcher has set variables that are meant for this process.
inline bool has_variables_of(const launcher_names& names) {
  if (!variable(names.rank) && !variable(names.size)) return false;
  return names.required == nullptr || (variable(names.required) && !is_shell_of_slurm());
}

/// Returns the launcher that the user has chosen. If there is none, returns the first of
/// `launchers` whose variables this process has, or null.
inline const launcher_names* find_launcher() {
  const auto chosen = variable(rank_choice);
  for (const launcher_names& names : launchers)
    if (chosen ? *chosen == names.rank : has_variables_of(names)) return &names;
  return nullptr;
}

/// Returns the ancestor that owns the launcher's variables, if this process has inherited them
/// without being a rank itself. Empty if the user has chosen a variable. A shell only counts for a
/// group of one rank, because with `mpirun -n 2 xterm` the user starts each rank in a shell.
inline std::optional<launch_ancestor> find_owner_of(const launcher_names& names) {
  if (variable(rank_choice)) return std::nullopt;
  const char* const place[] = {names.rank, names.size};
  const auto found = find_launch_ancestor(place);
  const bool is_one_rank = variable(names.size) == "1";
  return found && found->is == launch_ancestor::role::shell && !is_one_rank ? std::nullopt : found;
}

/// Returns the number in `text`.
/// Throws: `error` invalid_argument unless `text` is a whole number from `least` to `most`.
inline std::size_t parse_variable(const char* name, std::string_view text, std::size_t least,
                                  std::size_t most, std::string_view meaning) {
  std::size_t value = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [stop, code] = std::from_chars(begin, end, value);
  if (code != std::errc{} || stop != end || value < least || value > most)
    throw error{errc::invalid_argument, concat(name, " is '", text, "', expected ", meaning,
                                               " from ", least, " to ", most)};
  return value;
}

/// Returns the number in a variable that must be set if the variable `beside` is set.
/// Throws: `error` invalid_argument.
inline std::size_t required_variable(const char* name, std::size_t least, std::size_t most,
                                     std::string_view meaning, const char* beside) {
  const auto text = variable(name);
  if (!text)
    throw error{errc::invalid_argument,
                concat(name, " is not set although ", beside, " is, expected ", meaning, " from ",
                       least, " to ", most)};
  return parse_variable(name, *text, least, most, meaning);
}

/// Returns text that names the variable by which the launcher reports that some of the `size` ranks
/// are on other hosts. Empty if it reports none.
inline std::string sign_of_other_hosts(const launcher_names& names, std::size_t size) {
  const auto here = variable(names.local_size);
  if (here && parse_variable(names.local_size, *here, 1, most_ranks, "a number of ranks") != size)
    return concat(names.local_size, " is ", *here, " but ", names.size, " is ", size);
  const auto nodes = variable("SLURM_STEP_NUM_NODES");
  if (names.required != nullptr && nodes && *nodes != "1")
    return concat("SLURM_STEP_NUM_NODES is '", *nodes, "'");
  return {};
}

/// Returns the job of this process: `PEERBUS_JOB` if it is set, otherwise the id that the launcher
/// gives to all ranks. The number of the step and of the start are added for Slurm, because steps
/// of a job run at the same time, and a job that is started again keeps its id.
inline std::string read_job(const launcher_names& names) {
  if (const auto own = variable("PEERBUS_JOB")) return std::string{*own};
  std::string job{variable(names.job).value_or("")};
  if (names.required == nullptr) return job;
  for (const char* part : {names.required, "SLURM_RESTART_COUNT"})
    if (const auto number = variable(part)) job += concat(".", *number);
  return job;
}

/// Returns text that names the variables by which another launcher than `used` gives this process
/// another place than `rank` of `size`. Empty if there are none, or if it is known which launcher
/// started this process last.
inline std::string sign_of_another_place(const launcher_names& used, std::size_t rank,
                                         std::size_t size) {
  const bool by_anyone = &used == launchers;  // Scripts set RANK and WORLD_SIZE as well.
  const bool by_torchrun = by_anyone && variable(used.job);
  if (variable(rank_choice) || by_torchrun) return {};
  const auto differs = [](const char* name, std::size_t expected) {
    const auto value = variable(name);
    return value && *value != std::to_string(expected);
  };
  const auto describe = [](const char* name) {
    return concat(name, " is ", variable(name).value_or("not set"));
  };
  for (const launcher_names& other : launchers) {
    // mpirun has srun start its daemons on other hosts, so its ranks have Slurm's variables too.
    const bool may_be_around = other.required != nullptr && !by_anyone;
    if (has_variables_of(other) && !may_be_around &&
        (differs(other.rank, rank) || differs(other.size, size)))
      return concat(describe(other.rank), " and ", describe(other.size));
  }
  return by_anyone && differs("PMIX_RANK", rank) ? describe("PMIX_RANK") : std::string{};
}

enum class hosts { one, any };

/// Reads the settings from the environment.
/// Throws: `error` invalid_argument, with the variable that is missing or wrong; unsupported if
/// only one host is `allowed` and the launcher reports others.
inline launch_settings read_launch_settings(hosts allowed = hosts::one) {
  const launcher_names* names = find_launcher();
  if (const auto chosen = variable(rank_choice); chosen && names == nullptr)
    throw error{errc::invalid_argument,
                concat(rank_choice, " is '", *chosen,
                       "', expected RANK, OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID")};
  if (names == nullptr)
    throw error{errc::invalid_argument,
                "RANK and WORLD_SIZE are not set, nor what mpirun and srun set in their place; "
                "expected a launcher such as torchrun, mpirun or srun"};
  launch_settings read;
  read.size = required_variable(names->size, 1, most_ranks, "a number of ranks",
                                variable(names->rank) ? names->rank : rank_choice);
  read.rank = required_variable(names->rank, 0, read.size - 1, "a rank", names->size);
  if (const auto other = sign_of_another_place(*names, read.rank, read.size); !other.empty())
    throw error{errc::invalid_argument,
                concat(names->rank, " is ", read.rank, " and ", names->size, " is ", read.size,
                       ", but ", other, "; expected launchers that agree, or ", rank_choice,
                       " to name the variable of the rank, such as ", names->rank)};
  // A group of one rank waits for nobody, so a child of its rank may make another one.
  if (const auto owner = find_owner_of(*names); owner && read.size > 1)
    throw error{errc::invalid_argument,
                concat(names->rank, " is ", read.rank, " and ", names->size, " is ", read.size,
                       ", but that rank is process ", owner->pid, ", which has started this one; ",
                       "expected a process that a launcher has started, or ", rank_choice, "=",
                       names->rank, " if its children are to be a group of their own")};
  const std::string others = sign_of_other_hosts(*names, read.size);
  if (allowed == hosts::one && !others.empty())
    throw error{errc::unsupported,
                concat(others, ": expected all ranks on one host; peerbus::tcp_bootstrap joins ",
                       "the ranks of several")};
  const auto local = variable(names->local_rank);
  read.local_rank =
      local ? parse_variable(names->local_rank, *local, 0, read.size - 1, "a rank") : read.rank;
  if (const auto address = variable("MASTER_ADDR"); address && !address->empty())
    read.address = *address;
  else if (!others.empty())
    throw error{errc::invalid_argument, concat("MASTER_ADDR is not set although ", others,
                                               ", expected the name or address of rank 0's host")};
  if (const auto port = variable("MASTER_PORT"))
    read.port =
        static_cast<std::uint16_t>(parse_variable("MASTER_PORT", *port, 0, 65535, "a port number"));
  read.job = read_job(*names);
  return read;
}

}  // namespace peerbus::detail
