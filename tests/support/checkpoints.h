// Checkpoints whose contents follow from their step, so that tests can tell what they opened.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include "base/temporary_folder.h"
#include "checkpoint/inventory.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "support/helpers.h"
#include "support/ranks.h"

namespace dgc::test {

namespace fs = std::filesystem;

/// Where the ranks have their folders.
enum class Disks { shared, own, pairs };
inline void PrintTo(Disks disks, std::ostream* out) {
  *out << (disks == Disks::shared ? "shared" : disks == Disks::own ? "own" : "pairs");
}

inline std::vector<TensorSpec> checkpoint_model() {
  return {TensorSpec::of("w", {20, 30}), TensorSpec::of("b", {7})};
}

/// `salt` tells apart what two runs save at the same step.
inline State state_at(std::uint64_t step, int rank, int workers, unsigned salt = 0) {
  State state(checkpoint_model(), static_cast<std::uint32_t>(rank),
              static_cast<std::uint32_t>(workers));
  std::mt19937 random(static_cast<unsigned>(step * 1000 + static_cast<unsigned>(rank)) + salt);
  std::normal_distribution<float> sample;
  for (std::size_t t = 0; t < state.tensors().size(); ++t) {
    for (float& x : state.velocity(t)) x = sample(random);
    for (float& x : state.residual(t)) x = sample(random);
  }
  state.set_step(step);
  return state;
}

inline std::string model_at(std::uint64_t step, unsigned salt = 0) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += fmt::format("model {} {} {}\n", step, salt, i);
  return text;
}

inline std::string user_at(std::uint64_t step, unsigned salt = 0) {
  return fmt::format("{{\"epoch\": {}, \"ä\": {}}}", step, salt);
}

inline bool same_state(const State& a, const State& b) {
  bool same = a.step() == b.step();
  for (std::size_t t = 0; t < a.tensors().size(); ++t) {
    same =
        same && same_bits(a.velocity(t), b.velocity(t)) && same_bits(a.residual(t), b.residual(t));
  }
  return same;
}

inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void save_at(Group& group, const fs::path& folder, std::uint64_t step, int keep,
                    unsigned salt = 0, const checkpoint::Trace& trace = {}) {
  const State state = state_at(step, group.rank(), group.size(), salt);
  const std::string model = model_at(step, salt);
  const std::string none;
  checkpoint::save(group, folder,
                   {.step = step,
                    .user = group.rank() == 0 ? user_at(step, salt) : "not kept",
                    .shared = {{"model.pt", std::as_bytes(std::span(model))},
                               {"empty", std::as_bytes(std::span(none))}},
                    .state = &state},
                   keep, trace);
}

/// Opens what save_at saved with as many ranks, and finds all of it. False if there is nothing.
inline bool check_opened(Group& group, const fs::path& folder, std::uint64_t& step,
                         const std::vector<unsigned>& salts = {0}) {
  const auto found = checkpoint::open(group, folder);
  if (!found) return false;
  step = found->step();
  State state(checkpoint_model(), static_cast<std::uint32_t>(group.rank()),
              static_cast<std::uint32_t>(group.size()));
  found->load_state(state);
  for (const unsigned salt : salts) {
    if (found->user() != user_at(step, salt)) continue;
    EXPECT_EQ(text_of(found->shared("model.pt")), model_at(step, salt));
    EXPECT_EQ(text_of(found->shared("empty")), "");
    EXPECT_TRUE(same_state(state, state_at(step, group.rank(), group.size(), salt)));
    return true;
  }
  ADD_FAILURE() << "not what was saved: " << found->user();
  return true;
}

class CheckpointTest : public testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kTimeout{20'000};

  fs::path folder(Disks disks, int rank) const {
    switch (disks) {
      case Disks::shared:
        return root_ / "all";
      case Disks::own:
        return root_ / fmt::format("of-{}", rank);
      case Disks::pairs:
        return root_ / fmt::format("pair-{}", rank / 2);
    }
    return root_;
  }

  std::vector<std::optional<Error>> save(int ranks, Disks disks, std::uint64_t step, int keep,
                                         unsigned salt = 0) {
    return run_ranks(ranks, kTimeout, [&](Group& group) {
      save_at(group, folder(disks, group.rank()), step, keep, salt);
    });
  }
  void save_well(int ranks, Disks disks, std::uint64_t step, int keep, unsigned salt = 0) {
    for (const auto& error : save(ranks, disks, step, keep, salt)) {
      if (error) FAIL() << error->what();
    }
  }
  void open_well(int ranks, Disks disks, std::uint64_t expected, unsigned salt = 0) {
    const auto errors = run_ranks(ranks, kTimeout, [&](Group& group) {
      std::uint64_t step = 0;
      ASSERT_TRUE(check_opened(group, folder(disks, group.rank()), step, {salt}));
      EXPECT_EQ(step, expected);
    });
    for (const auto& error : errors) {
      if (error) FAIL() << error->what();
    }
  }

  static std::set<std::string> names_in(const fs::path& directory) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
  static void write(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void flip(const fs::path& path, std::size_t at) {
    std::string text = read(path);
    text.at(at) = static_cast<char>(text.at(at) ^ 1);
    write(path, text);
  }

  const TemporaryFolder temporary_;
  const fs::path root_ = temporary_.path();
};

}  // namespace dgc::test
