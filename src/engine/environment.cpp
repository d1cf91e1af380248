// The choice of an engine, and its settings, from the environment.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "dgc/engines.h"
#include "engine/compiled.h"

namespace dgc {
namespace {

/// "" counts as unset, as in most launchers.
const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int number(const char* name) {
  const char* const text = variable(name);
  if (text == nullptr) {
    throw Error(
        ErrorCode::invalid_argument, "gloo", name, "is not set",
        "every process needs RANK, WORLD_SIZE, and MASTER_ADDR and MASTER_PORT or DGC_STORE");
  }
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || stop != end || value < 0) {
    throw Error(ErrorCode::invalid_argument, "gloo", name, fmt::format("'{}' is no number", text));
  }
  return value;
}

std::unique_ptr<Group> gloo_from_environment(std::chrono::milliseconds timeout,
                                             std::shared_ptr<RendezvousStore> store) {
  if (!detail::has_gloo()) return make_gloo_group(nullptr, {});  // throws: how to get it
  GlooOptions options{.rank = number("RANK"), .size = number("WORLD_SIZE"), .timeout = timeout};
  if (const char* const interface = variable("DGC_INTERFACE")) options.interface = interface;
  if (options.size != 1 && !store) {
    const char* const folder = variable("DGC_STORE");
    if (folder == nullptr && variable("MASTER_ADDR") != nullptr) {
      throw Error(
          ErrorCode::invalid_argument, "gloo", "MASTER_ADDR",
          "rendezvous by address needs a store made from it",
          "pass address_store_from_environment() (dgc/address_store.h, built with libtorch), or "
          "set DGC_STORE to a new folder that all ranks see");
    }
    if (folder == nullptr) {
      throw Error(ErrorCode::invalid_argument, "gloo", "DGC_STORE", "is not set",
                  "set it to a new folder that all ranks see, or set MASTER_ADDR and MASTER_PORT");
    }
    store = make_file_store(folder);
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
  if (variable("OMPI_COMM_WORLD_SIZE") != nullptr) return "mpi";
  if (variable("RANK") != nullptr && variable("WORLD_SIZE") != nullptr) return "gloo";
  return "local";
}

std::string this_host() {
  if (const char* const given = variable("DGC_HOST_ID")) return given;
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
