#include "engine/gloo_device.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/quiet_threads.h"

namespace dgc::detail {
namespace {

using gloo::transport::tcp::Address;

/// Gloo itself crashes on a name that does not resolve.
bool resolves(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return false;
  ::freeaddrinfo(found);
  return true;
}

std::string own_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

Device make_device(const GlooOptions& options) {
  const QuietThreads quiet;
  gloo::transport::tcp::attr attr;
  if (!options.interface.empty() || !options.hostname.empty()) {
    const bool by_interface = !options.interface.empty();
    const std::string subject = by_interface ? fmt::format("interface '{}'", options.interface)
                                             : fmt::format("hostname '{}'", options.hostname);
    const std::string hint = "`ip address` lists interfaces and addresses of this machine";
    attr.iface = options.interface;
    attr.hostname = options.hostname;
    if (!by_interface && !resolves(options.hostname)) {
      throw Error(ErrorCode::invalid_argument, "gloo", subject, "does not resolve", hint);
    }
    // Gloo would find out too, but leaks its list of interfaces then.
    if (by_interface && ::if_nametoindex(options.interface.c_str()) == 0) {
      throw Error(ErrorCode::invalid_argument, "gloo", subject, "does not exist", hint);
    }
    try {
      return gloo::transport::tcp::CreateDevice(attr);
    } catch (const std::exception&) {
      throw Error(ErrorCode::invalid_argument, "gloo", subject, "has no address to listen on here",
                  hint);
    }
  }
  const std::string name = own_name();
  if (!name.empty() && resolves(name)) {
    try {
      attr.hostname = name;
      return gloo::transport::tcp::CreateDevice(attr);
    } catch (const std::exception&) {
      // The name belongs to an address that is not here, as in some containers.
    }
  }
  attr.hostname = "127.0.0.1";
  return gloo::transport::tcp::CreateDevice(attr);
}

std::string loopback_network() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/net", error);
  if (boot.empty() || error) return own_name();
  return boot + " " + space.string();
}

std::string readable(std::string_view text) {
  // "[file:line] …"
  const auto end = text.find("] ");
  if (text.starts_with("[") && end != std::string_view::npos) text = text.substr(end + 2);
  // "[address]:port"
  static const bool swapped = [] {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(1);
    return Address(reinterpret_cast<const sockaddr*>(&in), sizeof in).str().ends_with(":256");
  }();
  std::string result;
  while (swapped) {
    const auto found = text.find("]:");
    if (found == std::string_view::npos) break;
    result += text.substr(0, found + 2);
    text.remove_prefix(found + 2);
    std::uint16_t port = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    if (error != std::errc{}) continue;
    result += std::to_string(ntohs(port));
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  }
  return result.append(text);
}

}  // namespace dgc::detail
