// A switch in user space that hands every Ethernet frame over later. scripts/reproduce/hosts.py
// puts it between its hosts, because not every kernel has netem.
//
// It reads frames from its ports (AF_PACKET), keeps each for the delay, and writes it to the port
// that leads to its receiver, or to all of them for a receiver it has not seen. All frames wait
// equally long: a queue keeps their order. It can lose a share of the frames, always the same ones
// of a run, and all frames of a port between two moments.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Address = std::array<unsigned char, ETH_ALEN>;

constexpr std::size_t kFrameBytes = 2048;  // more than an MTU of 1500 needs
constexpr unsigned kBatch = 64;            // frames that one system call reads or writes

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// Checksums and cutting into frames have to be done before the switch sees a frame.
void turn_offloads_off(const std::string& device) {
  const int any = socket(AF_INET, SOCK_DGRAM, 0);
  if (any < 0) fail("socket");
  for (const std::uint32_t command :
       {ETHTOOL_SRXCSUM, ETHTOOL_STXCSUM, ETHTOOL_SSG, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO}) {
    ethtool_value value{.cmd = command, .data = 0};
    ifreq request{};
    device.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&value);
    ioctl(any, SIOCETHTOOL, &request);  // a device without it has nothing to turn off
  }
  close(any);
}

/// All frames of a port are lost between two moments, in seconds since the switch began.
struct Cut {
  std::size_t port;
  double begin, end;
};

struct Frame {
  Clock::time_point due;
  std::size_t to;
  std::size_t bytes;
  std::array<unsigned char, kFrameBytes> data;
};

/// Room for one system call's frames.
struct Batch {
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, kBatch> parts{};
};

class Switch {
 public:
  Switch(std::chrono::duration<double> delay, double drop, const std::vector<std::string>& ports,
         std::vector<Cut> cuts)
      : delay_(std::chrono::duration_cast<Clock::duration>(delay)),
        lost_(drop),
        cuts_(std::move(cuts)) {
    for (const std::string& port : ports) polled_.push_back({open_port(port), POLLIN, 0});
  }

  /// Until a port is gone, because the hosts are being removed.
  void run() {
    for (;;) {
      deliver();
      if (!wait()) return;
      for (std::size_t port = 0; port < polled_.size(); ++port) {
        if (polled_[port].revents != 0 && !take(port)) return;
      }
    }
  }

 private:
  static int open_port(const std::string& name) {
    turn_offloads_off(name);
    const int file = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL));
    if (file < 0) fail("AF_PACKET");
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(name.c_str()));
    if (bind(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail(name);
    const int yes = 1;  // what it writes itself does not come back to it
    if (setsockopt(file, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes) != 0) fail(name);
    // Without room, frames that come while the switch waits for a core would be lost.
    const int room = 16 << 20;
    setsockopt(file, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    return file;
  }

  bool wait() {
    timespec left{};
    if (!waiting_.empty()) {
      const auto time = std::max(waiting_.front().due - Clock::now(), Clock::duration::zero());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
      left = {seconds.count(), std::chrono::nanoseconds(time - seconds).count()};
    }
    return ppoll(polled_.data(), polled_.size(), waiting_.empty() ? nullptr : &left, nullptr) >=
               0 ||
           errno == EINTR;
  }

  /// Writes what is due. What a full queue does not take is lost, as in any switch.
  void deliver() {
    const Clock::time_point now = Clock::now();
    while (!waiting_.empty() && waiting_.front().due <= now) {
      const std::size_t to = waiting_.front().to;
      unsigned count = 0;
      for (const Frame& frame : waiting_) {
        if (count == kBatch || frame.due > now || frame.to != to) break;
        add(count++, const_cast<unsigned char*>(frame.data.data()), frame.bytes);
      }
      for (unsigned sent = 0; sent < count;) {
        const int done = sendmmsg(polled_[to].fd, &batch_.messages[sent], count - sent, 0);
        sent += done > 0 ? static_cast<unsigned>(done) : 1;
      }
      waiting_.erase(waiting_.begin(), waiting_.begin() + count);
    }
  }

  bool take(std::size_t port) {
    for (unsigned i = 0; i < kBatch; ++i) add(i, arriving_[i].data(), arriving_[i].size());
    const int count = recvmmsg(polled_[port].fd, batch_.messages.data(), kBatch, 0, nullptr);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    const Clock::time_point now = Clock::now();
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      pass_on(port, {arriving_[i].data(), batch_.messages[i].msg_len}, now);
    }
    return true;
  }

  void pass_on(std::size_t from, std::span<const unsigned char> bytes, Clock::time_point now) {
    Address receiver, sender;
    std::memcpy(receiver.data(), bytes.data(), ETH_ALEN);
    std::memcpy(sender.data(), bytes.data() + ETH_ALEN, ETH_ALEN);
    behind_[sender] = from;
    if (lost_(chance_) || is_cut(from, now)) return;
    const auto known = behind_.find(receiver);
    for (std::size_t to = 0; to < polled_.size(); ++to) {
      if (known != behind_.end() ? to != known->second : to == from) continue;
      if (is_cut(to, now)) continue;
      Frame& frame = waiting_.emplace_back();
      frame.due = now + delay_;
      frame.to = to;
      frame.bytes = bytes.size();
      std::memcpy(frame.data.data(), bytes.data(), bytes.size());
    }
  }

  bool is_cut(std::size_t port, Clock::time_point now) const {
    const double seconds = std::chrono::duration<double>(now - began_).count();
    return std::any_of(cuts_.begin(), cuts_.end(), [&](const Cut& cut) {
      return cut.port == port && cut.begin <= seconds && seconds < cut.end;
    });
  }

  void add(std::size_t i, unsigned char* data, std::size_t bytes) {
    batch_.parts[i] = {data, bytes};
    batch_.messages[i] = {};
    batch_.messages[i].msg_hdr.msg_iov = &batch_.parts[i];
    batch_.messages[i].msg_hdr.msg_iovlen = 1;
  }

  const Clock::duration delay_;
  const Clock::time_point began_ = Clock::now();
  std::mt19937_64 chance_{1};
  std::bernoulli_distribution lost_;
  const std::vector<Cut> cuts_;
  std::vector<pollfd> polled_;
  std::map<Address, std::size_t> behind_;  // the port behind which an address was seen
  std::deque<Frame> waiting_;
  Batch batch_;
  std::array<std::array<unsigned char, kFrameBytes>, kBatch> arriving_;
};

Cut cut_of(const std::string& text, const std::vector<std::string>& ports) {
  const auto first = text.find(':');
  const auto second = text.find(':', first + 1);
  const auto port = std::find(ports.begin(), ports.end(), text.substr(0, first));
  if (second == std::string::npos || port == ports.end()) {
    throw CLI::ValidationError("--cut " + text, "is not PORT:FROM:TO with one of the ports");
  }
  return {static_cast<std::size_t>(port - ports.begin()),
          std::stod(text.substr(first + 1, second - first - 1)),
          std::stod(text.substr(second + 1))};
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app(
      "A switch that hands every frame over later. Started by scripts/reproduce/hosts.py.");
  std::string device;
  double drop = 0.0;
  double delay_ms = 0.0;
  std::vector<std::string> cuts, ports;
  app.add_option("--offloads-off", device, "Turn the offloads of a host's device off, and end");
  app.add_option("--drop", drop, "Share of the frames that are lost")->check(CLI::Range(0.0, 1.0));
  app.add_option("--cut", cuts, "PORT:FROM:TO: lose all frames of a port between two seconds");
  app.add_option("--delay-ms", delay_ms, "From port to port")->check(CLI::NonNegativeNumber);
  app.add_option("ports", ports, "Network devices");
  CLI11_PARSE(app, argc, argv);
  if (!device.empty()) {
    turn_offloads_off(device);
    return 0;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<Cut> cut;
  for (const std::string& text : cuts) cut.push_back(cut_of(text, ports));
  Switch one(std::chrono::duration<double, std::milli>(delay_ms), drop, ports, std::move(cut));
  fmt::print("ready\n");
  std::fflush(stdout);
  one.run();
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "slow_switch: {}\n", error.what());
  return 1;
}
