#include "dgc/state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/file.h"
#include "base/temporary_folder.h"
#include "support/helpers.h"

namespace dgc {
namespace {

namespace fs = std::filesystem;
using test::code_of;
using test::same_bits;

class StateTest : public testing::Test {
 protected:
  fs::path file(const std::string& name) const { return directory_ / name; }

  static std::vector<TensorSpec> specs() {
    return {TensorSpec::of("conv.weight", {8, 3, 3, 3}), TensorSpec::of("conv.bias", {8}),
            TensorSpec::of("scale", {}), test::sparse("empty", 0)};
  }
  /// A state with recognisable contents.
  static State filled(std::uint32_t rank, std::uint32_t workers, bool velocity = true) {
    State state(specs(), rank, workers, velocity);
    std::mt19937 random(rank + 1);
    std::normal_distribution<float> sample;
    for (std::size_t t = 0; t < specs().size(); ++t) {
      for (float& x : state.velocity(t)) x = sample(random);
      for (float& x : state.residual(t)) x = sample(random);
    }
    state.set_step(17);
    return state;
  }

  const TemporaryFolder directory_;
};

TEST_F(StateTest, RoundTripIsExact) {
  for (const bool velocity : {true, false}) {
    const State saved = filled(1, 2, velocity);
    saved.save(file("s"));
    State loaded(specs(), 1, 2, velocity);
    loaded.load(file("s"));
    EXPECT_EQ(loaded.step(), 17u);
    for (std::size_t t = 0; t < specs().size(); ++t) {
      EXPECT_TRUE(same_bits(loaded.velocity(t), saved.velocity(t)));
      EXPECT_TRUE(same_bits(loaded.residual(t), saved.residual(t)));
    }
    const MappedFile contents(file("s"));
    const StateInfo info = inspect_state(contents.contents());
    EXPECT_EQ(info.rank, 1u);
    EXPECT_EQ(info.workers, 2u);
    EXPECT_EQ(info.has_velocity, velocity);
    EXPECT_EQ(info.tensors[0].spec, specs()[0]);
    EXPECT_EQ(info.tensors[0].residual_nonzero, 216u);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), {}), 1)
      << "no temporary files stay";
}

TEST_F(StateTest, AResumedRunContinuesBitForBit) {
  const std::vector<TensorSpec> model = {test::sparse("w", 20'000), TensorSpec::of("b", {50})};
  CompressOptions options;
  options.schedule = Schedule::paper(12);
  options.values = ValueType::fp16;
  test::Worker straight(model, options);
  std::mt19937 random(1);
  std::vector<test::Tensors> gradients;
  for (int step = 0; step < 20; ++step) gradients.push_back(test::gaussian(model, random));
  std::vector<std::vector<std::byte>> messages;
  for (int step = 0; step < 20; ++step) {
    if (step == 9) straight.state.save(file("s"));
    messages.push_back(straight.step(gradients[static_cast<std::size_t>(step)]));
  }
  test::Worker resumed(model, options);
  resumed.state.load(file("s"));
  for (std::size_t step = 9; step < 20; ++step)
    ASSERT_EQ(resumed.step(gradients[step]), messages[step]) << step;
}

TEST_F(StateTest, AnotherNumberOfWorkersConservesTheSums) {
  for (const std::uint32_t before : {1u, 2u, 3u, 5u}) {
    std::vector<fs::path> files;
    std::vector<double> sum_u(216, 0.0);
    std::vector<double> sum_v(216, 0.0);
    for (std::uint32_t rank = 0; rank < before; ++rank) {
      const State state = filled(rank, before);
      for (std::size_t i = 0; i < 216; ++i) {
        sum_u[i] += static_cast<double>(state.velocity(0)[i]);
        sum_v[i] += static_cast<double>(state.residual(0)[i]);
      }
      files.insert(files.begin(), file(std::to_string(before) + "-" + std::to_string(rank)));
      state.save(files.front());
    }
    for (const std::uint32_t after : {1u, 2u, 4u, 7u}) {
      std::vector<double> new_u(216, 0.0);
      std::vector<double> new_v(216, 0.0);
      for (std::uint32_t rank = 0; rank < after; ++rank) {
        State state(specs(), rank, after);
        state.load(files);
        EXPECT_EQ(state.step(), 17u);
        for (std::size_t i = 0; i < 216; ++i) {
          new_u[i] += static_cast<double>(state.velocity(0)[i]);
          new_v[i] += static_cast<double>(state.residual(0)[i]);
        }
        // Old rank i goes to i mod M, whole.
        EXPECT_EQ(state.residual(0)[5] == 0.0f, rank >= before);
        if (rank < before && rank + after >= before) {
          EXPECT_TRUE(same_bits(state.residual(0), filled(rank, before).residual(0)));
        }
      }
      for (std::size_t i = 0; i < 216; ++i) {
        EXPECT_NEAR(new_u[i], sum_u[i], 1e-5);
        EXPECT_NEAR(new_v[i], sum_v[i], 1e-5);
      }
    }
  }
}

TEST_F(StateTest, OtherShapesAreRefusedWithBothNamed) {
  filled(0, 1).save(file("s"));
  auto changed = specs();
  changed[0].shape = {8, 3, 5, 5};
  State state(changed);
  state.residual(0)[0] = 3.0f;
  try {
    state.load(file("s"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::shape_mismatch);
    const std::string text = error.what();
    for (const char* part : {"conv.weight", "8x3x3x3", "8x3x5x5"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_EQ(state.residual(0)[0], 3.0f) << "unchanged";
  EXPECT_EQ(state.step(), 0u);
}

TEST_F(StateTest, MismatchesAreNamed) {
  filled(0, 2).save(file("r0"));
  filled(1, 2).save(file("r1"));
  State later = filled(1, 2);
  later.set_step(18);
  later.save(file("later"));
  const auto load = [&](State& state, std::vector<fs::path> files) {
    return code_of([&] { state.load(std::span<const fs::path>(files)); });
  };
  State one(specs());
  EXPECT_EQ(code_of([&] { one.load(file("r0")); }), ErrorCode::state_mismatch) << "of two workers";
  EXPECT_EQ(load(one, {file("r0")}), ErrorCode::state_mismatch) << "one of two files";
  EXPECT_EQ(load(one, {file("r0"), file("r0")}), ErrorCode::state_mismatch)
      << "the same rank twice";
  EXPECT_EQ(load(one, {file("r0"), file("later")}), ErrorCode::state_mismatch) << "another step";
  EXPECT_EQ(load(one, {}), ErrorCode::state_mismatch);
  EXPECT_EQ(load(one, {file("r0"), file("r1")}), ErrorCode::ok);
  State plain(specs(), 0, 2, false);
  EXPECT_EQ(code_of([&] { plain.load(file("r0")); }), ErrorCode::state_mismatch) << "velocity";
  auto renamed = specs();
  renamed[1].name = "other";
  State other(renamed, 0, 2);
  EXPECT_EQ(code_of([&] { other.load(file("r0")); }), ErrorCode::state_mismatch);
  EXPECT_EQ(code_of([&] { one.load(file("absent")); }), ErrorCode::io);
}

TEST_F(StateTest, EveryDamagedByteIsFound) {
  filled(0, 1).save(file("s"));
  std::vector<std::byte> good;
  {
    const MappedFile contents(file("s"));
    good.assign(contents.contents().begin(), contents.contents().end());
  }
  EXPECT_NO_THROW(inspect_state(good));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<std::byte> bad = good;
    bad[i] ^= std::byte{0x10};
    EXPECT_THROW(inspect_state(bad), Error) << i;
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(inspect_state(std::span(good).first(size)), Error) << size;
  }
}

TEST_F(StateTest, AFailedSaveLeavesTheOldFile) {
  const State state = filled(0, 1);
  EXPECT_EQ(code_of([&] { state.save(directory_ / "no" / "such" / "folder"); }), ErrorCode::io);
  fs::create_directory(file("taken"));
  EXPECT_EQ(code_of([&] { state.save(file("taken")); }), ErrorCode::io) << "a folder is in the way";
  EXPECT_TRUE(fs::is_directory(file("taken")));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), {}), 1)
      << "no temporary files stay";
}

TEST(State, RejectsImpossibleModels) {
  const auto make = [](std::vector<TensorSpec> specs, std::uint32_t rank = 0,
                       std::uint32_t workers = 1) {
    return code_of([&] { State state(specs, rank, workers); });
  };
  EXPECT_EQ(make({}), ErrorCode::ok);
  EXPECT_EQ(make({}, 1, 1), ErrorCode::invalid_argument);
  EXPECT_EQ(make({}, 0, 0), ErrorCode::invalid_argument);
  EXPECT_EQ(make({test::sparse("a", 1), test::sparse("a", 1)}), ErrorCode::invalid_argument);
  EXPECT_EQ(make({test::sparse("", 1)}), ErrorCode::invalid_argument);
  EXPECT_EQ(make({test::sparse("a", -1)}), ErrorCode::invalid_argument);
  EXPECT_EQ(make({{"a", {1 << 20, 1 << 20}, false}}), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace dgc
