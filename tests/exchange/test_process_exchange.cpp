// An exchange across processes: a rank dies or stops in each phase, sends garbage, an old message,
// or has another model. Everybody else must name it in time and lose nothing.
#include <gtest/gtest.h>

#include "dgc/exchange.h"
#include "support/helpers.h"
#include "support/processes.h"
#include "support/tampered.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using test::join;
using test::Ranks;
using test::same_bits;
using test::TamperedGroup;
using test::Tensors;

constexpr int kSize = 4;
constexpr auto kTimeout = 1500ms;
constexpr int kFaultStep = 3;
const std::vector<TensorSpec> kModel = {test::sparse("conv", 2000), TensorSpec::of("bias", {40})};

void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

/// Steps until it fails. Throws unless the error names the victim, comes in time, and left u, v and
/// the parameters as a step that sent nothing does.
void survive(Group& group, Algorithm algorithm, int victim,
             const std::function<void(int step)>& before) {
  State state(kModel, static_cast<std::uint32_t>(group.rank()), kSize);
  Exchange exchange(group, kModel, {.schedule = Schedule(0.01)},
                    {.algorithm = algorithm, .check_parameters_every = 0}, &state);
  group.set_timeout(kTimeout);
  Tensors mine;
  for (const TensorSpec& spec : kModel) mine.emplace_back(spec.elements(), 0.0f);
  std::mt19937 random(static_cast<std::uint32_t>(group.rank()));
  for (int step = 0; step < kFaultStep + 3; ++step) {
    const Tensors g = test::gaussian(kModel, random);
    const Tensors parameters = mine;
    Tensors u, v;
    for (std::size_t t = 0; t < kModel.size(); ++t) {
      u.emplace_back(state.velocity(t).begin(), state.velocity(t).end());
      v.emplace_back(state.residual(t).begin(), state.residual(t).end());
      for (std::size_t i = 0; i < u[t].size(); ++i) {
        u[t][i] = 0.9f * u[t][i] + g[t][i] * 0.25f;
        v[t][i] += u[t][i];
      }
    }
    before(step);
    const auto start = Clock::now();
    try {
      const Gradient gradients[] = {{0, g[0]}, {1, g[1]}};
      const std::span<float> targets[] = {mine[0], mine[1]};
      exchange.step(gradients, targets, 1.0f);
    } catch (const Error& error) {
      const std::string text = error.what();
      require(step >= kFaultStep, "failed too early: " + text);
      require(text.find(fmt::format("rank {}", victim)) != std::string::npos,
              "other rank named: " + text);
      require(text.find("step") != std::string::npos, "step not named: " + text);
      require(Clock::now() - start < 2 * kTimeout, "too late: " + text);
      for (std::size_t t = 0; t < kModel.size(); ++t) {
        require(same_bits(mine[t], parameters[t]), "parameters changed: " + text);
        require(same_bits(state.residual(t), v[t]), "residual lost: " + text);
        require(same_bits(state.velocity(t), u[t]), "velocity lost: " + text);
      }
      return;
    }
  }
  throw std::runtime_error("nothing noticed");
}

void expect_survivors(Ranks& ranks, int victim) {
  const auto deadline = Clock::now() + 40s;
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(ranks.wait(rank, deadline), "");
  }
}

struct Fault {
  Algorithm algorithm;
  int call;  // which exchange of the step the victim does not finish
  int signal;
  int victim;
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << name_of(fault.algorithm) << " call " << fault.call;
}

std::vector<Fault> faults() {
  const std::pair<Algorithm, int> calls[] = {
      {Algorithm::allgather, 1}, {Algorithm::owner, 2}, {Algorithm::dense, 2}};
  std::vector<Fault> all;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    for (const int victim : {0, 2}) {
      for (const auto& [algorithm, count] : calls) {
        for (int call = 0; call < count; ++call) all.push_back({algorithm, call, signal, victim});
      }
    }
  }
  return all;
}

const auto kEngines = testing::ValuesIn(test::process_engines());

class ExchangeFaults : public testing::TestWithParam<std::tuple<std::string, Fault>> {};
INSTANTIATE_TEST_SUITE_P(Engines, ExchangeFaults,
                         testing::Combine(kEngines, testing::ValuesIn(faults())),
                         [](const auto& test) {
                           const Fault& fault = std::get<1>(test.param);
                           return fmt::format("{}{}Call{}{}Rank{}", std::get<0>(test.param),
                                              name_of(fault.algorithm), fault.call,
                                              fault.signal == SIGKILL ? "Killed" : "Stopped",
                                              fault.victim);
                         });

TEST_P(ExchangeFaults, SurvivorsNameTheRankAndLoseNothing) {
  const auto& [engine, fault] = GetParam();
  const TemporaryFolder folder;
  Ranks ranks(kSize, [&, &engine = engine, &fault = fault](int rank) {
    const auto inner = join(engine, folder.path(), rank, kSize, 20s);
    int step = -1;
    int call = 0;
    TamperedGroup group(*inner, [&](std::vector<std::byte>&) {
      // Called once for every message sent: three times in each exchange, once in a swap.
      if (rank == fault.victim && step == kFaultStep && call++ == 3 * fault.call)
        ::kill(::getpid(), fault.signal);
    });
    survive(group, fault.algorithm, fault.victim, [&](int s) {
      step = s;
      inner->set_timeout(kTimeout);
    });
  });
  expect_survivors(ranks, fault.victim);
}

/// Rank 1 sends something else than it should from step 3 on.
void expect_refused(const std::string& engine,
                    const std::function<void(std::vector<std::byte>&)>& tamper) {
  const TemporaryFolder folder;
  Ranks ranks(kSize, [&](int rank) {
    const auto inner = join(engine, folder.path(), rank, kSize, 20s);
    int step = -1;
    TamperedGroup group(*inner, [&](std::vector<std::byte>& bytes) {
      if (rank == 1 && step >= kFaultStep && test::is_message(bytes)) tamper(bytes);
    });
    survive(group, Algorithm::allgather, 1, [&](int s) {
      step = s;
      inner->set_timeout(kTimeout);
    });
  });
  expect_survivors(ranks, 1);
}

class ProcessExchange : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Engines, ProcessExchange, kEngines,
                         [](const auto& test) { return test.param; });

TEST_P(ProcessExchange, ACorruptedPayloadIsRefused) {
  expect_refused(GetParam(),
                 [](std::vector<std::byte>& bytes) { bytes[bytes.size() / 2] ^= std::byte{64}; });
}

TEST_P(ProcessExchange, APayloadOfThePreviousStepIsRefused) {
  expect_refused(GetParam(),
                 [](std::vector<std::byte>& bytes) { test::change_step(bytes, kFaultStep - 1); });
}

TEST_P(ProcessExchange, ARankWithAnotherModelIsNamedByAll) {
  const TemporaryFolder folder;
  Ranks ranks(kSize, [&](int rank) {
    const auto group = join(GetParam(), folder.path(), rank, kSize, 20s);
    std::vector<TensorSpec> model = kModel;
    if (rank == 2) model[0].shape = {1999};
    State state(model, static_cast<std::uint32_t>(rank), kSize);
    try {
      Exchange exchange(*group, model, {}, {}, &state);
    } catch (const Error& error) {
      const std::string text = error.what();
      require(error.code() == ErrorCode::configuration_mismatch ||
                  error.code() == ErrorCode::peer_failed,
              text);
      require(text.find("rank 2 has 'tensor conv 1999") != std::string::npos ||
                  text.find("'tensor conv 1999 sparse'") != std::string::npos,
              text);
      return;
    }
    throw std::runtime_error("nothing noticed");
  });
  expect_survivors(ranks, -1);
}

}  // namespace
}  // namespace dgc
