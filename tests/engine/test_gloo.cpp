// Groups of processes over Gloo: conformance; ranks that are killed, stopped or give up; and that
// nothing is left behind.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gloo/transport/tcp/address.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <array>
#include <optional>
#include <thread>

#include "dgc/collectives.h"
#include "engine/connection.h"
#include "engine/gloo_device.h"
#include "support/conformance.h"
#include "support/processes.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

using test::join;
using test::Ranks;

class GlooGroupTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, GlooGroupTest, testing::Values(1, 2, 3, 4, 7, 8));

TEST_P(GlooGroupTest, ConformsAndLeavesNothingBehind) {
  const TemporaryFolder folder;
  const int size = GetParam();
  Ranks ranks(size, [&](int rank) {
    const auto group = join(folder.path(), rank, size, 60s);
    test::check_conformance(*group);
  });
  const auto deadline = Clock::now() + 100s;
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

struct Fault {
  const char* what;
  std::function<void(Group&)> collective;
  int signal;
  int victim;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.what; }

std::vector<Fault> faults() {
  const auto gather = [](Group& group) {
    all_gather(group,
               std::vector<std::byte>(100'000 + 1000 * static_cast<std::size_t>(group.rank())));
  };
  const auto reduce = [](Group& group) {
    std::vector<float> values(50'000, 1.0f);
    all_reduce(group, values);
  };
  const auto spread = [](Group& group) {
    // Large enough that sends do not fit into the buffers of a stopped process.
    std::vector<std::byte> bytes(20'000'000);
    broadcast(group, bytes, 0);
    barrier(group);
  };
  std::vector<Fault> all;
  for (const int number : {SIGKILL, SIGSTOP}) {
    for (const int victim : {0, 2}) {
      all.push_back({"Barrier", [](Group& group) { barrier(group); }, number, victim});
      all.push_back({"AllGather", gather, number, victim});
      all.push_back({"AllReduce", reduce, number, victim});
      all.push_back({"Broadcast", spread, number, victim});
    }
  }
  return all;
}

class GlooFault : public testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(Faults, GlooFault, testing::ValuesIn(faults()), [](const auto& test) {
  const Fault& fault = test.param;
  return fmt::format("{}{}Rank{}", fault.what, fault.signal == SIGKILL ? "Killed" : "Stopped",
                     fault.victim);
});

TEST_P(GlooFault, SurvivorsNameTheRankInTime) {
  const Fault& fault = GetParam();
  const TemporaryFolder folder;
  constexpr int kSize = 4;
  constexpr auto kTimeout = 1500ms;
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  Ranks ranks(kSize, [&](int rank) {
    const auto group = join(folder.path(), rank, kSize, 20s);
    barrier(*group);
    group->set_timeout(kTimeout);
    if (::write(ready[1], "r", 1) != 1) ::_exit(4);
    try {
      for (;;) fault.collective(*group);
    } catch (const Error& error) {
      const std::string text = error.what();
      const bool code = error.code() == ErrorCode::peer_lost ||
                        error.code() == ErrorCode::timeout ||
                        error.code() == ErrorCode::peer_failed;
      if (!code || text.find(fmt::format("rank {}", fault.victim)) == std::string::npos) throw;
    }
  });
  for (int rank = 0; rank < kSize; ++rank) {
    char byte = 0;
    pollfd readable{ready[0], POLLIN, 0};
    ASSERT_EQ(::poll(&readable, 1, 30'000), 1);
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  }
  std::this_thread::sleep_for(100ms);
  ranks.signal(fault.victim, fault.signal);
  const auto deadline = Clock::now() + 2 * kTimeout;
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == fault.victim) continue;
    EXPECT_EQ(ranks.wait(rank, deadline), "");
  }
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(GlooGroup, TheFirstCauseReachesEverybodyAndStays) {
  const TemporaryFolder folder;
  constexpr int kSize = 4;
  Ranks ranks(kSize, [&](int rank) {
    const auto group = join(folder.path(), rank, kSize, 20s);
    barrier(*group);
    if (rank == 2) {
      group->fail(Error(ErrorCode::nonfinite_gradient, "compress", "'conv1'", "nan at step 7"));
      return;
    }
    if (rank == 3) std::this_thread::sleep_for(500ms);  // comes when the others have gone
    for (int again = 0; again < 2; ++again) {
      try {
        barrier(*group);
      } catch (const Error& error) {
        const std::string text = error.what();
        if (error.code() != ErrorCode::peer_failed || error.subject() != "rank 2" ||
            text.find("'conv1': nan at step 7") == std::string::npos) {
          throw;
        }
        continue;
      }
      throw std::runtime_error("the group went on");
    }
  });
  const auto deadline = Clock::now() + 15s;
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(GlooGroup, RanksInDifferentCollectivesEndWithAnError) {
  // Gloo would abort the process if a message were longer than what the other side expects.
  const TemporaryFolder folder;
  Ranks ranks(2, [&](int rank) {
    const auto group = join(folder.path(), rank, 2, 5s);
    try {
      if (rank == 0) {
        const std::vector<std::byte> bytes(100);
        group->swap(bytes, bytes.size());
      } else {
        const std::string text = "something else";
        all_gather(*group, std::as_bytes(std::span(text)));
        barrier(*group);
      }
    } catch (const Error& error) {
      if (rank == 0) group->fail(error);
      return;
    }
    throw std::runtime_error("went on");
  });
  const auto deadline = Clock::now() + 15s;
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
}

TEST(GlooGroup, ARankThatNeverComesIsNamed) {
  const TemporaryFolder folder;
  try {
    join(folder.path(), 0, 2, 300ms);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_EQ(error.subject(), "rank 1");
  }
  // What that run left is not taken for a new one.
  try {
    join(folder.path(), 0, 2, 300ms);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
  }
}

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

std::size_t entries(const char* folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator{}));
}

TEST(GlooGroup, ManyGroupsLeakNothing) {
  const TemporaryFolder folder;
  const auto round = [&](int i) {
    const std::string name = fmt::format("round{}", i);
    const auto run = [&](int rank) { barrier(*join(folder.path(), rank, 2, 20s, name)); };
    std::jthread other([&] { run(1); });
    run(0);
    join(folder.path(), 0, 1, 20s, name);
  };
  round(-1);
  const std::size_t descriptors = entries("/proc/self/fd");
  const std::size_t threads = entries("/proc/self/task");
  for (int i = 0; i < 334; ++i) round(i);  // 1,002 groups
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  // A joined thread may be listed a moment longer.
  for (int i = 0; i < 100 && entries("/proc/self/task") != threads; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_TRUE(fs::is_empty(folder.path()));
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
  static constexpr const char* kNames[] = {"OMPI_COMM_WORLD_SIZE", "RANK",
                                           "WORLD_SIZE",           "DGC_STORE",
                                           "DGC_INTERFACE",        "DGC_HOST_ID",
                                           "MASTER_ADDR",          "MASTER_PORT",
                                           "DGC_SECRET",           "TORCHELASTIC_USE_AGENT_STORE"};
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
  EXPECT_NE(message([] { make_group("nccl"); }).find("local, gloo"), std::string::npos);
}

TEST(Engines, ProcessesMeetThroughTheEnvironment) {
  const TemporaryFolder folder;
  Ranks ranks(2, [&](int rank) {
    const Environment environment({{"RANK", std::to_string(rank)},
                                   {"WORLD_SIZE", "2"},
                                   {"DGC_STORE", folder.path().string()},
                                   {"DGC_INTERFACE", "lo"}});
    barrier(*make_group("auto", 20s));
  });
  const auto deadline = Clock::now() + 20s;
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait(rank, deadline), "");
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
