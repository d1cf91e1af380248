// Checkpoints of whole runs: on shared and own disks, and with other numbers of ranks.
#include <thread>

#include "checkpoint/format.h"
#include "dgc/collectives.h"
#include "support/checkpoints.h"

namespace dgc {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using test::Disks;
using test::run_ranks;

class CheckpointFolder : public test::CheckpointTest {};

constexpr Disks kDisks[] = {Disks::shared, Disks::own, Disks::pairs};

TEST_F(CheckpointFolder, RoundTripIsExactOnAllDisks) {
  for (const Disks disks : kDisks) {
    for (const int ranks : {1, 2, 5}) {
      save_well(ranks, disks, 1200, 3);
      open_well(ranks, disks, 1200);
      save_well(ranks, disks, 1300, 3);
      open_well(ranks, disks, 1300);
      std::set<std::string> all;
      for (int rank = 0; rank < ranks; ++rank) {
        const fs::path path = folder(disks, rank);
        EXPECT_EQ(names_in(path), (std::set<std::string>{"step-000000001200", "step-000000001300"}))
            << "nothing temporary stays";
        all.merge(names_in(path / "step-000000001200"));
      }
      EXPECT_EQ(all.size(), 3u + static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) fs::remove_all(folder(disks, rank));
    }
  }
}

TEST_F(CheckpointFolder, TheFormatOfTheFirstVersionIsReadAndWritten) {
  // Written by dgc 0.1.0 on two ranks.
  const fs::path golden = fs::path(DGC_GOLDEN_DIR) / "checkpoint";
  const auto state_of = [](int rank) {
    State state({TensorSpec::of("w", {3, 4}), TensorSpec::of("b", {5})},
                static_cast<std::uint32_t>(rank), 2);
    for (std::size_t t = 0; t < 2; ++t) {
      for (std::size_t i = 0; i < state.residual(t).size(); ++i) {
        const auto place = static_cast<float>(i);
        const auto one = static_cast<float>(rank + 1);
        state.velocity(t)[i] = one + 0.25f * place;
        state.residual(t)[i] = -one - 0.5f * place;
      }
    }
    state.set_step(1200);
    return state;
  };
  const std::string model = "parameters";
  const auto errors = run_ranks(2, kTimeout, [&](Group& group) {
    const State expected = state_of(group.rank());
    const auto found = checkpoint::open(group, golden);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step(), 1200u);
    EXPECT_EQ(found->user(), "epoch 3");
    EXPECT_EQ(found->workers(), 2);
    EXPECT_EQ(test::text_of(found->shared("model.pt")), model);
    State state(expected.tensors(), static_cast<std::uint32_t>(group.rank()), 2);
    found->load_state(state);
    EXPECT_TRUE(test::same_state(state, expected));
    checkpoint::save(group, root_ / "all",
                     {.step = 1200,
                      .user = "epoch 3",
                      .shared = {{"model.pt", std::as_bytes(std::span(model))}},
                      .state = &expected},
                     1);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  // The same bytes again, but for the version in the manifest.
  const fs::path before = golden / "step-000000001200";
  const fs::path after = root_ / "all" / "step-000000001200";
  ASSERT_EQ(names_in(after), names_in(before));
  for (const std::string& name : names_in(before)) {
    if (name != checkpoint::kManifestName) {
      EXPECT_EQ(read(after / name), read(before / name)) << name;
    }
  }
  checkpoint::Manifest manifest = checkpoint::describe(after).manifest;
  manifest.version = checkpoint::describe(before).manifest.version;
  EXPECT_EQ(manifest.text(), read(before / "manifest.json"));
}

TEST_F(CheckpointFolder, SharedFilesAreWrittenOncePerDisk) {
  save_well(5, Disks::pairs, 7, 1);
  const std::set<std::string> shared = {"manifest.json", "model.pt", "empty"};
  for (int pair = 0; pair < 3; ++pair) {
    std::set<std::string> expected = shared;
    expected.insert(fmt::format("rank-{:05}.state", 2 * pair));
    if (pair < 2) expected.insert(fmt::format("rank-{:05}.state", 2 * pair + 1));
    EXPECT_EQ(names_in(folder(Disks::pairs, 2 * pair) / "step-000000000007"), expected);
  }
}

TEST_F(CheckpointFolder, NothingThereIsNoError) {
  const auto errors = run_ranks(3, kTimeout, [&](Group& group) {
    EXPECT_FALSE(checkpoint::open(group, folder(Disks::own, group.rank())));
    if (group.rank() == 1) fs::create_directory(folder(Disks::own, 1));
    EXPECT_FALSE(checkpoint::open(group, folder(Disks::own, group.rank())));
    EXPECT_EQ(test::code_of([&] { checkpoint::open(group, root_, 5); }), ErrorCode::io);
    barrier(group);
  });
  for (const auto& error : errors) EXPECT_FALSE(error);
}

TEST_F(CheckpointFolder, OtherNumbersOfRanksConserveTheSums) {
  for (const Disks disks : kDisks) {
    for (const int before : {1, 3, 4}) {
      for (const int after : {1, 2, 5}) {
        save_well(before, disks, 60, 1);
        std::vector<double> sum(2 * 600, 0.0);
        for (int rank = 0; rank < before; ++rank) {
          const State state = test::state_at(60, rank, before);
          for (std::size_t i = 0; i < 600; ++i) {
            sum[i] += static_cast<double>(state.velocity(0)[i]);
            sum[600 + i] += static_cast<double>(state.residual(0)[i]);
          }
        }
        std::mutex mutex;
        const auto errors = run_ranks(after, kTimeout, [&](Group& group) {
          const auto found = checkpoint::open(group, folder(disks, group.rank()));
          ASSERT_TRUE(found);
          EXPECT_EQ(found->workers(), before);
          EXPECT_EQ(test::text_of(found->shared("model.pt")), test::model_at(60));
          State state(test::checkpoint_model(), static_cast<std::uint32_t>(group.rank()),
                      static_cast<std::uint32_t>(after));
          state.residual(0)[3] = 99.0f;
          found->load_state(state);
          EXPECT_EQ(state.step(), 60u);
          const std::lock_guard lock(mutex);
          for (std::size_t i = 0; i < 600; ++i) {
            sum[i] -= static_cast<double>(state.velocity(0)[i]);
            sum[600 + i] -= static_cast<double>(state.residual(0)[i]);
          }
        });
        const int seen = disks == Disks::own ? after : (after + 1) / 2 * 2;
        const bool reachable = disks == Disks::shared || before <= seen;
        for (const auto& error : errors) {
          EXPECT_EQ(error.has_value(), !reachable) << (error ? error->what() : "");
          if (error) {
            EXPECT_NE(std::string(error->what()).find("no rank sees"), std::string::npos);
          }
        }
        if (reachable) {
          for (const double left : sum) EXPECT_NEAR(left, 0.0, 1e-5);
        }
        fs::remove_all(root_);
        fs::create_directory(root_);
      }
    }
  }
}

TEST_F(CheckpointFolder, OldRankFilesGoWholeAndTravel) {
  // Four ranks, each with a disk of its own, go on as three that see disks 3, 0+1 and 2.
  save_well(4, Disks::own, 9, 1);
  const fs::path target = folder(Disks::own, 0) / "step-000000000009";
  fs::copy_file(folder(Disks::own, 1) / "step-000000000009" / "rank-00001.state",
                target / "rank-00001.state");
  const int sees[] = {3, 0, 2};
  const auto errors = run_ranks(3, kTimeout, [&](Group& group) {
    const int rank = group.rank();
    const auto found = checkpoint::open(group, folder(Disks::own, sees[rank]));
    ASSERT_TRUE(found);
    State state(test::checkpoint_model(), static_cast<std::uint32_t>(rank), 3);
    found->load_state(state);
    State expected = test::state_at(9, rank, 4);
    if (rank == 0) {
      const State other = test::state_at(9, 3, 4);
      for (std::size_t t = 0; t < 2; ++t) {
        for (std::size_t i = 0; i < expected.residual(t).size(); ++i) {
          expected.residual(t)[i] += other.residual(t)[i];
          expected.velocity(t)[i] += other.velocity(t)[i];
        }
      }
    }
    EXPECT_TRUE(test::same_state(state, expected)) << rank;
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST_F(CheckpointFolder, LargeFilesTravelInPieces) {
  // Rank 1 begins on an empty disk. 40 MB are more than goes in one message.
  const std::vector<TensorSpec> model = {test::sparse("w", 5'000'000)};
  const auto filled = [&](int rank) {
    State state(model, static_cast<std::uint32_t>(rank), 2);
    for (std::size_t i = 0; i < 5'000'000; ++i) {
      state.residual(0)[i] = static_cast<float>(i) + 0.5f * static_cast<float>(rank);
    }
    return state;
  };
  const auto errors = run_ranks(2, kTimeout, [&](Group& group) {
    const State state = filled(group.rank());
    checkpoint::save(group, folder(Disks::shared, 0), {.step = 1, .state = &state}, 1);
    const auto before = group.traffic();
    const auto found = checkpoint::open(
        group, folder(group.rank() == 0 ? Disks::shared : Disks::own, group.rank()));
    ASSERT_TRUE(found);
    const Traffic traffic = group.traffic() - before;
    if (group.rank() == 1) {
      EXPECT_GT(traffic.bytes_received, 40'000'000u);
    }
    if (group.rank() == 1) {
      EXPECT_LT(traffic.bytes_received, 40'100'000u);
    }
    State loaded(model, static_cast<std::uint32_t>(group.rank()), 2);
    found->load_state(loaded);
    EXPECT_TRUE(test::same_bits(loaded.residual(0), state.residual(0)));
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST_F(CheckpointFolder, KeepsTheNewest) {
  for (const Disks disks : kDisks) {
    for (const std::uint64_t step : {10u, 20u, 30u, 40u}) save_well(4, disks, step, 2);
    // What is not ours stays, however much it looks like it.
    const std::set<std::string> others = {
        "step-10",   "step-0000000000010", "step-000000000010.bak",
        "notes.txt", ".dgc-probe-1-00000", "step-000000000005"};
    for (const std::string& name : others) fs::create_directory(folder(disks, 0) / name);
    write(folder(disks, 0) / "step-000000000007.tmp", "a file, not a directory");
    // These are: leftovers of killed runs.
    fs::create_directory(folder(disks, 0) / "step-000000000050.tmp");
    fs::create_directory(folder(disks, 0) / "step-000000000010.gone");
    write(folder(disks, 0) / ".dgc-probe-0123456789abcdef-00003", "");
    save_well(4, disks, 50, 2);
    std::set<std::string> expected = others;
    expected.insert("step-000000000007.tmp");
    for (const char* kept : {"step-000000000040", "step-000000000050"}) expected.insert(kept);
    EXPECT_EQ(names_in(folder(disks, 0)), expected);
    open_well(4, disks, 50);
    // Going back does not lose what is later, nor what was just saved.
    save_well(4, disks, 45, 1);
    EXPECT_TRUE(fs::exists(folder(disks, 3) / "step-000000000045"));
    EXPECT_TRUE(fs::exists(folder(disks, 3) / "step-000000000050"));
    EXPECT_FALSE(fs::exists(folder(disks, 3) / "step-000000000040"));
    fs::remove_all(root_);
    fs::create_directory(root_);
  }
}

TEST_F(CheckpointFolder, TheSameStepIsReplaced) {
  for (const Disks disks : kDisks) {
    save_well(3, disks, 10, 2, 1);
    save_well(3, disks, 10, 2, 2);
    open_well(3, disks, 10, 2);
    EXPECT_EQ(names_in(folder(disks, 0)).size(), 1u);
  }
}

TEST_F(CheckpointFolder, AFolderThatIsNoCheckpointIsNotReplaced) {
  const fs::path other = folder(Disks::shared, 0) / "step-000000000010";
  fs::create_directories(other);
  std::ofstream(other / "mine") << "not ours";
  const auto errors = run_ranks(3, std::chrono::seconds(10), [&](Group& group) {
    test::save_at(group, folder(Disks::shared, group.rank()), 10, 2);
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("has no manifest"), std::string::npos)
        << error->what();
  }
  EXPECT_TRUE(fs::exists(other / "mine"));
}

TEST_F(CheckpointFolder, AnOlderStepCanBeAskedFor) {
  for (const std::uint64_t step : {10u, 20u}) save_well(2, Disks::own, step, 2);
  const auto errors = run_ranks(2, kTimeout, [&](Group& group) {
    const fs::path path = folder(Disks::own, group.rank());
    EXPECT_EQ(checkpoint::open(group, path, 10)->step(), 10u);
    EXPECT_EQ(test::code_of([&] { checkpoint::open(group, path, 15); }), ErrorCode::io);
    const auto differ = [&] { checkpoint::open(group, path, group.rank() == 0 ? 10 : 20); };
    EXPECT_EQ(test::code_of(differ), ErrorCode::configuration_mismatch);
    barrier(group);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST_F(CheckpointFolder, StatesOfHostsNeedTheSameRanks) {
  // Four ranks on two hosts: rank r has share r % 2 of host r / 2, of another size.
  const auto share = [](int rank) {
    return State({test::sparse("w", 10 + rank % 2)}, static_cast<std::uint32_t>(rank / 2), 2);
  };
  const fs::path path = folder(Disks::shared, 0);
  auto errors = run_ranks(4, kTimeout, [&](Group& group) {
    State state = share(group.rank());
    state.residual(0)[9] = static_cast<float>(group.rank() + 1);
    checkpoint::save(group, path, {.step = 5, .state = &state}, 1);
    State loaded = share(group.rank());
    checkpoint::open(group, path)->load_state(loaded);
    EXPECT_EQ(loaded.residual(0)[9], static_cast<float>(group.rank() + 1));
    State flat({test::sparse("w", 10)}, static_cast<std::uint32_t>(group.rank()), 4);
    EXPECT_EQ(test::code_of([&] { checkpoint::open(group, path)->load_state(flat); }),
              ErrorCode::state_mismatch);
  });
  const auto code_with = [&](int ranks, std::uint32_t hosts) {
    const auto all = run_ranks(ranks, kTimeout, [&](Group& group) {
      State state({test::sparse("w", 10)}, static_cast<std::uint32_t>(group.rank()) % hosts, hosts);
      checkpoint::open(group, path)->load_state(state);
    });
    for (const auto& error : all) EXPECT_EQ(error->code(), all[0]->code());
    return all[0]->code();
  };
  EXPECT_EQ(code_with(2, 2), ErrorCode::state_mismatch);
  EXPECT_EQ(code_with(2, 1), ErrorCode::state_mismatch);
  fs::remove_all(path);
  save_well(3, Disks::shared, 5, 1);
  EXPECT_EQ(code_with(4, 2), ErrorCode::state_mismatch) << "states of ranks, read by hosts";
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST_F(CheckpointFolder, ASlowDiskDoesNotEndTheGroup) {
  const auto errors = run_ranks(3, 400ms, [&](Group& group) {
    test::save_at(group, folder(Disks::shared, 0), 10, 1, 0, [&](std::string_view what) {
      if (what == "rank file" && group.rank() == 1) std::this_thread::sleep_for(1500ms);
    });
    std::uint64_t step = 0;
    EXPECT_TRUE(test::check_opened(group, folder(Disks::shared, 0), step));
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST(CheckpointNames, OnlyOurOwnAreRecognised) {
  using namespace checkpoint;
  for (const std::uint64_t step :
       {std::uint64_t{0}, std::uint64_t{123'456'789'012'345}, UINT64_MAX}) {
    for (const Stage stage : {Stage::whole, Stage::replaced, Stage::partial, Stage::gone}) {
      const auto parsed = parse_step_name(step_name(step, stage));
      ASSERT_TRUE(parsed);
      EXPECT_EQ(parsed->step, step);
      EXPECT_EQ(parsed->stage, stage);
    }
  }
  for (const char* name : {"step-1", "step-0000000000001", "step-00000000000x", "step-", "",
                           "step-000000000001.tmp.tmp", "step-000000000001 ", "step--00000000001",
                           "step-99999999999999999999999", "Step-000000000001"}) {
    EXPECT_FALSE(parse_step_name(name)) << name;
  }
  EXPECT_EQ(parse_rank_file_name("rank-00012.state"), 12);
  EXPECT_FALSE(parse_rank_file_name("rank-12.state"));
  EXPECT_TRUE(is_probe_name(probe_name(UINT64_MAX, 3)));
  EXPECT_FALSE(is_probe_name(".dgc-probe-0123456789abcdeF-00003"));
}

}  // namespace
}  // namespace dgc
