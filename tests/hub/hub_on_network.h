// A hub that serves a small run on a loopback address, and raw connections to it.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>

#include "base/temporary_folder.h"
#include "hub/member.h"
#include "hub/server.h"

namespace dgc::test {

struct HubSetup {
  hub::Terms terms = {.momentum = 0.0f, .values = ValueType::fp32};
  hub::ServerOptions server = {};
  bool tls = false;
};

/// A hub on a thread of its own.
class HubOnNetwork {
 public:
  explicit HubOnNetwork(HubSetup setup = {})
      : terms(setup.terms), journal(folder.path() / hub::kJournalFile, true) {
    for (const auto& [name, right] :
         {std::pair("a", hub::Right::work), std::pair("b", hub::Right::work),
          std::pair("reader", hub::Right::read), std::pair("guest", hub::Right::invite)}) {
      tokens[name] = journal.add_token(name, right, 0.0);
    }
    hub::HubOptions options;
    options.terms = setup.terms;
    options.settings = "{}";
    options.rules.deadline = 600.0;  // rounds wait for all
    hub::HubPlan plan;
    plan.epochs = 1000.0;
    plan.batch = 4;
    plan.pace = [](const auto&) {
      return hub::HubPlan::Pace{.lr = 0.1, .inner_lr = 0.0, .ratio = 0.1};
    };
    the_hub.emplace(folder.path(), journal, options, plan, hub::HubWatcher{});
    setup.server.address = "127.0.0.1";
    setup.server.port = 0;
    if (setup.tls) setup.server.identity = hub::identity_in(folder.path());
    server.emplace(*the_hub, setup.server);
    port = server->port();
    thread = std::thread([this] { server->run([this] { return stop.load(); }); });
  }
  ~HubOnNetwork() { end(); }
  HubOnNetwork(const HubOnNetwork&) = delete;
  HubOnNetwork& operator=(const HubOnNetwork&) = delete;

  /// After it the hub may be looked at from here.
  void end() {
    stop = true;
    if (thread.joinable()) thread.join();
  }

  hub::Terms terms;
  TemporaryFolder folder;
  hub::Journal journal;
  std::map<std::string, std::string> tokens;
  std::optional<hub::Hub> the_hub;
  std::optional<hub::Server> server;
  std::uint16_t port = 0;
  std::atomic<bool> stop = false;
  std::thread thread;
};

struct Answer {
  int status = 0;  ///< 0: the connection ended without one
  std::map<std::string, std::string> fields;
  std::string body;

  hub::Bytes bytes() const {
    const auto all = std::as_bytes(std::span(body));
    return {all.begin(), all.end()};
  }
  nlohmann::json head() const { return hub::read_packet(std::as_bytes(std::span(body))).head; }
};

/// A connection that sends what it is told to.
class Line {
 public:
  explicit Line(std::uint16_t port, const char* from = "127.0.0.1") {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from, &address.sin_addr);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(port);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit{.tv_sec = 60, .tv_usec = 0};  // for a test that fails
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Line() { close(); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  int handle() const noexcept { return socket_; }
  /// Nothing more is sent.
  void finish() const { ::shutdown(socket_, SHUT_WR); }
  /// All that comes until the end.
  std::string rest() {
    while (more()) {
    }
    return std::exchange(kept_, {});
  }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

  void send(std::string_view text) {
    while (!text.empty()) {
      const ::ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // closed: the answer tells
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void get(const std::string& path, const std::string& token) {
    send("GET " + path + " HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + token + "\r\n\r\n");
  }
  void post(const std::string& path, const std::string& token, const hub::Bytes& body) {
    send("POST " + path + " HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + token +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n");
    send({reinterpret_cast<const char*>(body.data()), body.size()});
  }

  Answer answer() {
    while (kept_.find("\r\n\r\n") == std::string::npos) {
      if (!more()) return {};
    }
    const std::size_t end = kept_.find("\r\n\r\n");
    Answer found{.status = std::stoi(kept_.substr(9, 3)), .fields = {}, .body = {}};
    for (std::size_t at = kept_.find("\r\n") + 2; at < end;) {
      const std::size_t stop = kept_.find("\r\n", at);
      const std::size_t colon = kept_.find(": ", at);
      found.fields[kept_.substr(at, colon - at)] = kept_.substr(colon + 2, stop - colon - 2);
      at = stop + 2;
    }
    kept_.erase(0, end + 4);
    const std::size_t length = std::stoul(found.fields.at("Content-Length"));
    while (kept_.size() < length) {
      if (!more()) return {};
    }
    found.body = kept_.substr(0, length);
    kept_.erase(0, length);
    return found;
  }
  /// Waits for the end of the connection. False where something else came.
  bool ended() {
    if (!kept_.empty()) return false;
    return !more();
  }

 private:
  bool more() {
    char some[4096];
    const ::ssize_t got = ::recv(socket_, some, sizeof some, 0);
    EXPECT_FALSE(got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) << "nothing came";
    if (got <= 0) return false;
    kept_.append(some, static_cast<std::size_t>(got));
    return true;
  }

  int socket_ = -1;
  std::string kept_;
};

}  // namespace dgc::test
