// A group over an emulated link: nothing arrives before its time, and nothing else changes.
#include <gtest/gtest.h>

#include <thread>

#include "dgc/collectives.h"
#include "dgc/engines.h"
#include "dgc/exchange.h"
#include "engine/emulated_link.h"
#include "support/conformance.h"
#include "support/helpers.h"
#include "support/ranks.h"
#include "support/samples.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// As run_ranks, each rank behind a link.
auto run_behind(const Link& link, int size, std::chrono::milliseconds timeout,
                const std::function<void(Group&)>& work) {
  auto groups = make_local_groups(size, timeout);
  std::vector<std::optional<Error>> errors(groups.size());
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < groups.size(); ++r) {
    threads.emplace_back([&, r, inner = std::move(groups[r])]() mutable {
      auto group = make_emulated_link(std::move(inner), link);
      try {
        work(*group);
      } catch (const Error& error) {
        errors[r] = error;
      }
    });
  }
  threads.clear();
  return errors;
}

void expect_no(const std::vector<std::optional<Error>>& errors) {
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return Seconds(Clock::now() - start).count();
}

TEST(Link, IsParsedAndPrinted) {
  const Link link = parse_link("--link", "100Mbps,25ms");
  EXPECT_DOUBLE_EQ(link.bytes_per_second, 12.5e6);
  EXPECT_DOUBLE_EQ(link.delay.count(), 0.025);
  EXPECT_EQ(link_text(link), "100 Mbps, 25 ms");
  EXPECT_EQ(parse_link("--link", " 1 Gbit/s , 0ms").delay.count(), 0.0);
  EXPECT_EQ(parse_link("--link", link_text(link)), link);
  for (const char* wrong : {"", "100Mbps", "25ms", "100Mbps,25ms,1ms", "25ms,100Mbps", "0Mbps,1ms",
                            "100Mbps,-1ms", "100,25"}) {
    try {
      parse_link("--link", wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << wrong;
      EXPECT_NE(std::string(error.what()).find("--link"), std::string::npos) << error.what();
    }
  }
}

class EmulatedLinkTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EmulatedLinkTest, testing::Values(1, 2, 3, 5));

TEST_P(EmulatedLinkTest, Conforms) {
  expect_no(run_behind({1e10, Seconds(10e-6)}, GetParam(), 60s, test::check_conformance));
}

TEST(EmulatedLink, SaysSo) {
  run_behind({12.5e6, 25ms}, 1, 1s, [](Group& group) {
    EXPECT_EQ(group.engine(), "local, emulated link of 100 Mbps, 25 ms");
  });
  for (const Link& wrong : {Link{0.0, 0s}, Link{-1.0, 0s}, Link{1e6, -1ms}}) {
    auto groups = make_local_groups(1);
    EXPECT_THROW(make_emulated_link(std::move(groups[0]), wrong), Error);
  }
}

TEST(EmulatedLink, AMessageTakesTheDelayAndMoreWithoutRoom) {
  constexpr double kDelay = 0.02;
  expect_no(run_behind({1e9, Seconds(kDelay)}, 3, 20s, [&](Group& group) {
    const std::vector<std::byte> mine(10);
    const std::uint64_t next[] = {10, 10};
    const double took = seconds_of([&] {
      group.swap(mine, 10, next);  // 2: the news that there is room takes as long as the message
      group.swap(mine, 10, next);  // 1
      group.swap(mine, 11);        // 3: lengths, then contents, whose room is made after that
      std::byte byte{};
      std::byte from{};
      const Outgoing send{(group.rank() + 1) % 3, {&byte, 1}};
      const Incoming receive{(group.rank() + 2) % 3, {&from, 1}};
      group.exchange({&send, 1}, {&receive, 1});  // 2
    });
    // A rank that begins late finds the others a part of the way. If nobody had to ask, it were 5.
    EXPECT_GE(took, 7 * kDelay);
  }));
}

TEST(LinkTimes, FollowTheRateTheDelayAndTheRoom) {
  const auto at = [](double seconds) {
    return LinkTimes::Time(std::chrono::duration_cast<Clock::duration>(Seconds(seconds)));
  };
  const Link link{1000.0, Seconds(2.0)};
  LinkTimes sender(link);
  // One after the other, and a pause is no credit.
  EXPECT_EQ(sender.send(at(10), 500), at(10));
  EXPECT_EQ(sender.send(at(10), 1000), at(10.5));
  EXPECT_EQ(sender.sent(), at(11.5));
  EXPECT_EQ(sender.send(at(20), 1000), at(20));
  EXPECT_EQ(sender.sent(), at(21));
  LinkTimes receiver(link);
  // With room made long ago: one delay, and the bytes.
  EXPECT_EQ(receiver.receive(at(10), at(0), 500), at(12.5));
  // From somebody else at the same time: behind that.
  EXPECT_EQ(receiver.receive(at(10), at(0), 500), at(13));
  // Room was made a moment before: the news is there at 21.5.
  EXPECT_EQ(receiver.receive(at(20), at(19.5), 0), at(23.5));
  // Room is made when the message is ready, or later.
  EXPECT_EQ(receiver.receive(at(30), at(30), 0), at(34));
  EXPECT_EQ(receiver.receive(at(40), at(45), 1000), at(50));
}

TEST(EmulatedLink, RoomIsMadeForTwoCallsAhead) {
  // Two behind each other need no permission: with one room made, the second would.
  constexpr double kDelay = 0.02;
  expect_no(run_behind({1e9, Seconds(kDelay)}, 2, 20s, [&](Group& group) {
    const std::uint64_t next[] = {10, 20};
    group.swap(std::vector<std::byte>(10), 10, next);
    const Traffic before = group.traffic();
    group.swap(std::vector<std::byte>(10), 10);
    group.swap(std::vector<std::byte>(20), 20);
    EXPECT_EQ((group.traffic() - before).messages_sent, 2u);
    // None was made for this one, and the one after it finds too little.
    const std::uint64_t little[] = {1};
    group.swap(std::vector<std::byte>(10), 10, little);
    const Traffic later = group.traffic();
    group.swap(std::vector<std::byte>(10), 10);
    EXPECT_EQ((group.traffic() - later).messages_sent, 2u);
  }));
}

TEST(EmulatedLink, MessagesOfARankShareItsRateBothWays) {
  constexpr double kRate = 1e6;
  const std::size_t bytes = 20'000;
  // All to all: three go out and three come in.
  expect_no(run_behind({kRate, 0s}, 4, 20s, [&](Group& group) {
    barrier(group);
    const double took = seconds_of([&] { group.swap(std::vector<std::byte>(bytes), bytes); });
    EXPECT_GE(took, 0.9 * 3 * static_cast<double>(bytes) / kRate);
  }));
  // Three to one: each sends one, and the one that receives has to take all.
  expect_no(run_behind({kRate, 0s}, 4, 20s, [&](Group& group) {
    std::vector<std::byte> memory(3 * bytes);
    std::vector<Incoming> in;
    std::vector<Outgoing> out;
    barrier(group);
    for (int r = 1; r < 4; ++r) {
      const auto part = std::span(memory).subspan(bytes * static_cast<std::size_t>(r - 1), bytes);
      if (group.rank() == 0) in.push_back({r, part});
      if (group.rank() == r) out.push_back({0, part});
    }
    const double took = seconds_of([&] { group.exchange(out, in); });
    EXPECT_GE(took, 0.9 * (group.rank() == 0 ? 3 : 1) * static_cast<double>(bytes) / kRate);
  }));
  // And one to three: it is done when all have left.
  expect_no(run_behind({kRate, 0s}, 4, 20s, [&](Group& group) {
    std::vector<std::byte> memory(bytes);
    std::vector<Incoming> in;
    std::vector<Outgoing> out;
    if (group.rank() > 0) in.push_back({0, memory});
    for (int r = 1; r < 4 && group.rank() == 0; ++r) out.push_back({r, memory});
    const double took = seconds_of([&] { group.exchange(out, in); });
    const double least = group.rank() == 0 ? 0.9 * 3 * static_cast<double>(bytes) / kRate : 0.0;
    EXPECT_GE(took, least);
  }));
}

TEST(EmulatedLink, ParametersAreTheSameBitsAsWithout) {
  const auto train = [](Group& group, std::vector<float>& result) {
    const std::vector<TensorSpec> model = {{"w", {50, 40}}, {"b", {40}, true}};
    State state(model, static_cast<std::uint32_t>(group.rank()),
                static_cast<std::uint32_t>(group.size()));
    Exchange exchange(group, model, {.schedule = Schedule(0.01)},
                      {.algorithm = Algorithm::allgather}, &state);
    std::vector<float> w(2000), b(40), gw(2000), gb(40);
    for (int step = 0; step < 5; ++step) {
      test::Lcg random(static_cast<std::uint64_t>(100 * step + group.rank()));
      for (float& x : gw) x = random.value();
      for (float& x : gb) x = random.value();
      const std::vector<Gradient> gradients = {{0, gw}, {1, gb}};
      const std::vector<std::span<float>> targets = {w, b};
      exchange.step(gradients, targets, -0.1f);
    }
    if (group.rank() != 0) return;
    result = w;
    result.insert(result.end(), b.begin(), b.end());
  };
  std::vector<float> plain, slow;
  expect_no(test::run_ranks(3, 20s, [&](Group& group) { train(group, plain); }));
  expect_no(run_behind({1e8, 1ms}, 3, 20s, [&](Group& group) { train(group, slow); }));
  EXPECT_EQ(plain, slow);
}

TEST(EmulatedLink, FailuresPassThrough) {
  const auto told = run_behind({1e9, 1ms}, 3, 20s, [](Group& group) {
    if (group.rank() == 1) group.fail(Error(ErrorCode::io, "read", "disk", "is full"));
    barrier(group);
  });
  for (const int r : {0, 2}) {
    const auto& error = told[static_cast<std::size_t>(r)];
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::peer_failed);
    EXPECT_NE(std::string(error->what()).find("is full"), std::string::npos) << error->what();
  }
  const auto lost = run_behind({1e9, 1ms}, 2, 20s, [](Group& group) {
    if (group.rank() == 0) barrier(group);
  });
  ASSERT_TRUE(lost[0]);
  EXPECT_EQ(lost[0]->code(), ErrorCode::peer_lost);
  const auto silent = run_behind({1e9, 1ms}, 2, 100ms, [](Group& group) {
    if (group.rank() == 0) return barrier(group);
    std::this_thread::sleep_for(300ms);
  });
  ASSERT_TRUE(silent[0]);
  EXPECT_EQ(silent[0]->code(), ErrorCode::timeout);
}

TEST(EmulatedLink, AMessageThatTheLinkIsTooSlowForIsATimeout) {
  const auto errors = run_behind({1e3, 0s}, 2, 200ms, [](Group& group) {
    group.swap(std::vector<std::byte>(100'000), 100'000);
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    // Whoever is first tells the other.
    if (error->code() == ErrorCode::peer_failed) continue;
    EXPECT_EQ(error->code(), ErrorCode::timeout) << error->what();
    EXPECT_NE(std::string(error->what()).find("emulated"), std::string::npos) << error->what();
  }
}

TEST(EmulatedLink, APeerThatEmulatesNoneIsRefused) {
  auto groups = make_local_groups(2, 5s);
  auto slow = make_emulated_link(std::move(groups[0]), {1e9, 0s});
  std::jthread other([&] {
    try {
      groups[1]->swap(std::vector<std::byte>(100), 100);
    } catch (const Error&) {
      // Told of the error below.
    }
  });
  EXPECT_THROW(slow->swap(std::vector<std::byte>(100), 100), Error);
}

}  // namespace
}  // namespace dgc
