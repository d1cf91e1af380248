// The choice of an engine, and its settings, from the environment.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>

#include "base/environment.h"
#include "dgc/address_store.h"
#include "engine/compiled.h"

namespace dgc {
namespace {

constexpr const char* kEngineVariable = "DGC_ENGINE";

int number(const char* name) {
  return number_in(
      name, "group",
      "every process needs RANK, WORLD_SIZE, and MASTER_ADDR and MASTER_PORT or DGC_STORE");
}

/// Where ranks meet if the caller brings no store. `engine` is for messages.
std::shared_ptr<RendezvousStore> store_from_environment(const std::string& engine,
                                                        std::chrono::milliseconds timeout) {
  if (const auto folder = variable("DGC_STORE")) return make_file_store(*folder);
  if (variable("MASTER_ADDR")) return address_store_from_environment(timeout);
  throw Error(ErrorCode::invalid_argument, engine, "DGC_STORE", "is not set",
              "set it to a new folder that all ranks see, or set MASTER_ADDR and MASTER_PORT");
}

std::unique_ptr<Group> gloo_from_environment(std::chrono::milliseconds timeout,
                                             std::shared_ptr<RendezvousStore> store) {
  if (!detail::has_gloo()) return make_gloo_group(nullptr, {});  // throws: how to get it
  GlooOptions options{.rank = number("RANK"), .size = number("WORLD_SIZE"), .timeout = timeout};
  options.interface = variable("DGC_INTERFACE").value_or("");
  if (options.size != 1 && !store) store = store_from_environment("gloo", timeout);
  return make_gloo_group(std::move(store), options);
}

std::unique_ptr<Group> shared_from_environment(std::chrono::milliseconds timeout,
                                               std::shared_ptr<RendezvousStore> store) {
  const SharedOptions options{
      .rank = number("RANK"), .size = number("WORLD_SIZE"), .timeout = timeout};
  if (options.size != 1 && !store) store = store_from_environment("shared", timeout);
  return make_shared_group(std::move(store), options);
}

}  // namespace

std::vector<std::string> engines() {
  std::vector<std::string> names{"local", "shared"};
  if (detail::has_gloo()) names.emplace_back("gloo");
  if (detail::has_mpi()) names.emplace_back("mpi");
  return names;
}

std::string engine_from_environment() {
  if (variable("OMPI_COMM_WORLD_SIZE")) return "mpi";
  if (!variable("RANK") || !variable("WORLD_SIZE")) return "local";
  const std::string engine = variable(kEngineVariable).value_or("gloo");
  if (engine == "gloo" || engine == "shared") return engine;
  throw Error(ErrorCode::invalid_argument, "group", kEngineVariable, fmt::format("is '{}'", engine),
              "set it to shared or gloo, or leave it out");
}

std::string this_host() {
  if (const auto given = variable("DGC_HOST_ID")) return *given;
  std::array<char, 256> name{};
  // One byte stays zero: a name that was cut need not end in one.
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::unique_ptr<Group> make_group(const std::string& engine, std::chrono::milliseconds timeout,
                                  std::shared_ptr<RendezvousStore> store) {
  const std::string name = engine == "auto" ? engine_from_environment() : engine;
  if (name == "local") return std::move(make_local_groups(1, timeout).front());
  if (name == "shared") return shared_from_environment(timeout, std::move(store));
  if (name == "gloo") return gloo_from_environment(timeout, std::move(store));
  if (name == "mpi") return make_mpi_group(timeout);
  throw Error(ErrorCode::invalid_argument, "group", fmt::format("engine '{}'", name), "is unknown",
              fmt::format("this build has {}, and auto", fmt::join(engines(), ", ")));
}

}  // namespace dgc
