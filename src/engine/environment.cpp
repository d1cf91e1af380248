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

int number(const char* name) {
  return number_in(
      name, "gloo",
      "every process needs RANK, WORLD_SIZE, and MASTER_ADDR and MASTER_PORT or DGC_STORE");
}

std::unique_ptr<Group> gloo_from_environment(std::chrono::milliseconds timeout,
                                             std::shared_ptr<RendezvousStore> store) {
  if (!detail::has_gloo()) return make_gloo_group(nullptr, {});  // throws: how to get it
  GlooOptions options{.rank = number("RANK"), .size = number("WORLD_SIZE"), .timeout = timeout};
  options.interface = variable("DGC_INTERFACE").value_or("");
  if (options.size != 1 && !store) {
    const std::optional<std::string> folder = variable("DGC_STORE");
    if (!folder && !variable("MASTER_ADDR")) {
      throw Error(ErrorCode::invalid_argument, "gloo", "DGC_STORE", "is not set",
                  "set it to a new folder that all ranks see, or set MASTER_ADDR and MASTER_PORT");
    }
    store = folder ? make_file_store(*folder) : address_store_from_environment(timeout);
  }
  return make_gloo_group(std::move(store), options);
}

}  // namespace

std::vector<std::string> engines() {
  std::vector<std::string> names{"local"};
  if (detail::has_gloo()) names.emplace_back("gloo");
  if (detail::has_mpi()) names.emplace_back("mpi");
  return names;
}

std::string engine_from_environment() {
  if (variable("OMPI_COMM_WORLD_SIZE")) return "mpi";
  if (variable("RANK") && variable("WORLD_SIZE")) return "gloo";
  return "local";
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
  if (name == "gloo") return gloo_from_environment(timeout, std::move(store));
  if (name == "mpi") return make_mpi_group(timeout);
  throw Error(ErrorCode::invalid_argument, "group", fmt::format("engine '{}'", name), "is unknown",
              fmt::format("this build has {}, and auto", fmt::join(engines(), ", ")));
}

}  // namespace dgc
