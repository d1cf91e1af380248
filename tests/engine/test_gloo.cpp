// What is Gloo's alone: addresses, devices, settings; and the choice of an engine. The rest is in
// test_processes.cpp.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gloo/transport/tcp/address.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <array>
#include <optional>
#include <thread>

#include "dgc/collectives.h"
#include "engine/connection.h"
#include "engine/gloo_device.h"
#include "support/processes.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

using test::join;
using test::Ranks;

TEST(GlooGroup, BadSettingsAreRefused) {
  const TemporaryFolder folder;
  const auto code = [&](GlooOptions options) {
    options.name = fmt::format("{}{}{}", options.rank, options.interface, options.hostname);
    options.timeout = 200ms;
    try {
      make_gloo_group(make_file_store(folder.path()), options);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::ok;
  };
  EXPECT_EQ(code({.rank = 2, .size = 2}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({.rank = -1, .size = 2}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({.rank = 0, .size = 0}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({.size = 2, .interface = "nosuch0"}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({.size = 2, .hostname = "nosuch.invalid"}), ErrorCode::invalid_argument);
  EXPECT_THROW(make_file_store(folder.path() / "absent"), Error);
  EXPECT_THROW(make_gloo_group(nullptr, {.size = 2}), Error);
}

/// A file store in which every other rank seems to be on another machine: the name of its network,
/// behind its address, is other.
class TwoMachines final : public RendezvousStore {
 public:
  explicit TwoMachines(const fs::path& folder) : store_(make_file_store(folder)) {}
  void set(const std::string& key, std::span<const std::byte> value) override {
    store_->set(key, value);
  }
  std::optional<std::vector<std::byte>> get(const std::string& key,
                                            std::chrono::milliseconds timeout) override {
    auto found = store_->get(key, timeout);
    if (found && key.find("/address.") != std::string::npos) found->push_back(std::byte{'x'});
    return found;
  }
  std::optional<std::vector<std::byte>> try_get(const std::string& key) override {
    return store_->try_get(key);
  }
  void remove(const std::string& key) noexcept override { store_->remove(key); }

 private:
  std::shared_ptr<RendezvousStore> store_;
};

// Gloo would try to connect until the time is over.
TEST(GlooGroup, ALoopbackAddressOfSeveralMachinesIsRefusedAtOnce) {
  const TemporaryFolder folder;
  std::array<std::optional<Error>, 2> errors;
  const auto run = [&](int rank) {
    try {
      make_gloo_group(
          std::make_shared<TwoMachines>(folder.path()),
          {.rank = rank, .size = 2, .hostname = "127.0.0.1", .timeout = std::chrono::hours(1)});
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(rank)] = error;
    }
  };
  {
    const std::jthread other([&] { run(1); });
    run(0);
  }
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("listens on 127.0.0.1"), std::string::npos)
        << error->what();
    EXPECT_NE(std::string(error->what()).find("DGC_INTERFACE"), std::string::npos) << error->what();
  }
}

TEST(GlooGroup, ARankWithAnotherSecretIsRefusedAtOnce) {
  const TemporaryFolder folder;
  std::array<std::optional<Error>, 2> errors;
  const auto run = [&](int rank, const char* secret) {
    try {
      make_gloo_group(make_file_store(folder.path()), {.rank = rank,
                                                       .size = 2,
                                                       .hostname = "127.0.0.1",
                                                       .timeout = std::chrono::hours(1),
                                                       .secret = secret});
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(rank)] = error;
    }
  };
  {
    const std::jthread other([&] { run(1, "one"); });
    run(0, "another");
  }
  ASSERT_TRUE(errors[1]);
  EXPECT_EQ(errors[1]->code(), ErrorCode::invalid_argument);
  EXPECT_NE(errors[1]->subject().find("rank 0 at 127.0.0.1:"), std::string::npos);
  EXPECT_NE(std::string(errors[1]->what()).find("DGC_SECRET"), std::string::npos);
  ASSERT_TRUE(errors[0]);
  EXPECT_EQ(errors[0]->code(), ErrorCode::peer_failed) << errors[0]->what();
}

/// Tells where each rank listens, as a stranger in the network would find out.
class Overheard final : public RendezvousStore {
 public:
  Overheard(const fs::path& folder, std::function<void(const detail::Address&)> stranger)
      : store_(make_file_store(folder)), stranger_(std::move(stranger)) {}
  void set(const std::string& key, std::span<const std::byte> value) override {
    if (key.find("/address.") != std::string::npos) {
      const std::string text(reinterpret_cast<const char*>(value.data()), value.size());
      const auto line = text.find('\n');
      const int port = std::stoi(text.substr(line + 1));
      stranger_(detail::resolve(text.substr(0, line), static_cast<std::uint16_t>(port)).front());
    }
    store_->set(key, value);
  }
  std::optional<std::vector<std::byte>> get(const std::string& key,
                                            std::chrono::milliseconds timeout) override {
    return store_->get(key, timeout);
  }
  std::optional<std::vector<std::byte>> try_get(const std::string& key) override {
    return store_->try_get(key);
  }
  void remove(const std::string& key) noexcept override { store_->remove(key); }

 private:
  std::shared_ptr<RendezvousStore> store_;
  std::function<void(const detail::Address&)> stranger_;
};

// They are there before anybody else is, more of them than a rank keeps, and stay.
TEST(GlooGroup, StrangersOnAPortOfARankChangeNothing) {
  for (const char* const secret : {"", "one"}) {
    const TemporaryFolder folder;
    Ranks ranks(3, [&](int rank) {
      std::vector<detail::Connection> strangers;
      const auto come = [&](const detail::Address& address) {
        for (int i = 0; i < 200; ++i) {
          strangers.emplace_back(detail::begin_connect(address));
          if (i % 4 == 1) strangers.back().send(std::vector<std::byte>(1));
          if (i % 4 == 2) strangers.back().send(std::vector<std::byte>(1000, std::byte{0xff}));
          if (i % 4 == 3) strangers.pop_back();
          if (!strangers.empty()) strangers.back().flush();
        }
      };
      const auto group = make_gloo_group(
          std::make_shared<Overheard>(folder.path(), come),
          {.rank = rank, .size = 3, .hostname = "127.0.0.1", .timeout = 60s, .secret = secret});
      for (int i = 0; i < 10; ++i) barrier(*group);
      if (is_open_to_strangers(*group)) throw std::runtime_error("is on a loopback address");
    });
    const auto deadline = Clock::now() + 100s;
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
  }
}

TEST(GlooDevice, LoopbackAddressesAreKnown) {
  const auto loopback = [](const char* host) {
    return detail::resolve(host, 1).front().is_loopback();
  };
  EXPECT_TRUE(loopback("127.0.0.1"));
  EXPECT_TRUE(loopback("127.0.1.1"));
  EXPECT_TRUE(loopback("::1"));
  EXPECT_FALSE(loopback("10.0.0.127"));
  EXPECT_FALSE(loopback("fe80::1"));
}

TEST(GlooDevice, MessagesHaveThePortsThatPeopleKnow) {
  // Ports as this Gloo prints them.
  const auto printed = [](std::uint16_t port) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return gloo::transport::tcp::Address(reinterpret_cast<const sockaddr*>(&in), sizeof in).str();
  };
  EXPECT_EQ(detail::readable("[tcp/pair.cc:89] Connection closed by peer " + printed(39539)),
            "Connection closed by peer [127.0.0.1]:39539");
  EXPECT_EQ(detail::readable(fmt::format("{} to {} and [", printed(80), printed(65535))),
            "[127.0.0.1]:80 to [127.0.0.1]:65535 and [");
  EXPECT_EQ(detail::readable("nothing of that [x]: here"), "nothing of that [x]: here");
}

/// Sets variables for one test; those of the launcher of the test are hidden.
class Environment {
 public:
  explicit Environment(std::vector<std::pair<const char*, std::string>> values) {
    for (const char* const name : kNames) ::unsetenv(name);
    for (const auto& [name, value] : values) ::setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    for (const char* const name : kNames) ::unsetenv(name);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static constexpr const char* kNames[] = {"OMPI_COMM_WORLD_SIZE",
                                           "RANK",
                                           "WORLD_SIZE",
                                           "DGC_ENGINE",
                                           "DGC_STORE",
                                           "DGC_SECRET",
                                           "DGC_HOST_ID",
                                           "DGC_INTERFACE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "TORCHELASTIC_USE_AGENT_STORE"};
};

std::string message(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Engines, AreChosenFromTheEnvironment) {
  {
    const Environment nothing({});
    EXPECT_EQ(engine_from_environment(), "local");
    EXPECT_EQ(make_group()->size(), 1);
  }
  {
    const Environment both({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
    EXPECT_EQ(engine_from_environment(), "mpi");
  }
  {
    const Environment alone({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"DGC_HOST_ID", "rack7"}});
    const auto group = make_group();
    EXPECT_EQ(group->engine(), "gloo");
    EXPECT_EQ(group->host(), "rack7");
  }
  {
    const Environment alone({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"DGC_ENGINE", "shared"}});
    EXPECT_EQ(make_group()->engine(), "shared");
    EXPECT_EQ(make_group("gloo")->engine(), "gloo");
  }
  {
    const Environment bad({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"DGC_ENGINE", "mpi"}});
    EXPECT_NE(message([] { make_group(); }).find("DGC_ENGINE"), std::string::npos);
  }
  {
    const Environment address({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}});
    const std::string text = message([] { make_group(); });
    EXPECT_NE(text.find("MASTER_PORT: is not set"), std::string::npos) << text;
  }
  {
    const Environment agent({{"RANK", "0"},
                             {"WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", "1"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
    const std::string text = message([] { make_group(); });
    EXPECT_NE(text.find("dgc::torch"), std::string::npos) << text;
  }
  {
    const Environment bad({{"RANK", "x"}, {"WORLD_SIZE", "2"}});
    EXPECT_NE(message([] { make_group(); }).find("RANK"), std::string::npos);
  }
  EXPECT_NE(message([] { make_group("nccl"); }).find("local, shared, gloo"), std::string::npos);
}

TEST(Engines, ProcessesMeetThroughTheEnvironment) {
  for (const std::string engine : {"gloo", "shared"}) {
    const TemporaryFolder folder;
    Ranks ranks(2, [&](int rank) {
      const Environment environment({{"RANK", std::to_string(rank)},
                                     {"WORLD_SIZE", "2"},
                                     {"DGC_ENGINE", engine},
                                     {"DGC_STORE", folder.path().string()},
                                     {"DGC_INTERFACE", "lo"}});
      const auto group = make_group("auto", 20s);
      if (group->engine() != engine) throw std::runtime_error("another engine");
      barrier(*group);
    });
    const auto deadline = Clock::now() + 20s;
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
  }
}

TEST(Engines, ProcessesMeetAtAnAddress) {
  const auto port = [] {
    return detail::Address::of(detail::listen_at(detail::resolve("127.0.0.1", 0).front())).port();
  }();
  Ranks ranks(3, [&](int rank) {
    const Environment environment({{"RANK", std::to_string(rank)},
                                   {"WORLD_SIZE", "3"},
                                   {"MASTER_ADDR", "127.0.0.1"},
                                   {"MASTER_PORT", std::to_string(port)},
                                   {"DGC_SECRET", "one"},
                                   {"DGC_INTERFACE", "lo"}});
    barrier(*make_group("auto", 20s));
  });
  const auto deadline = Clock::now() + 30s;
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
}

}  // namespace
}  // namespace dgc
