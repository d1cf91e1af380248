// Checkpoints that are damaged, and saves that fail: every rank hears of it and goes on.
#include <signal.h>
#include <sys/resource.h>

#include "dgc/collectives.h"
#include "support/checkpoints.h"

namespace dgc {
namespace {

namespace fs = std::filesystem;
using test::Disks;
using test::run_ranks;

class CheckpointDamage : public test::CheckpointTest {};

constexpr Disks kDisks[] = {Disks::shared, Disks::own, Disks::pairs};

/// What is wrong with a file, and how open() says so.
struct Damage {
  const char* what;
  const char* file;
  std::function<void(const fs::path&)> apply;
  ErrorCode code;
};

TEST_F(CheckpointDamage, DamageIsNamedOnAllRanks) {
  const auto cut = [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) / 2); };
  const auto grow = [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) + 1); };
  const auto remove = [](const fs::path& path) { fs::remove(path); };
  const auto flip_middle = [](const fs::path& path) { flip(path, fs::file_size(path) / 2); };
  const auto replace = [](const std::string& from, const std::string& to) {
    return [=](const fs::path& path) {
      std::string text = read(path);
      text.replace(text.find(from), from.size(), to);
      write(path, text);
    };
  };
  const std::vector<Damage> damages = {
      {"flip", "rank-00002.state", flip_middle, ErrorCode::checksum_mismatch},
      {"cut", "rank-00002.state", cut, ErrorCode::truncated},
      {"grow", "rank-00002.state", grow, ErrorCode::trailing_bytes},
      {"remove", "rank-00002.state", remove, ErrorCode::io},
      {"flip", "model.pt", flip_middle, ErrorCode::checksum_mismatch},
      {"cut", "model.pt", cut, ErrorCode::truncated},
      {"extra", "rank-00004.state", [](const fs::path& path) { write(path, "x"); },
       ErrorCode::state_mismatch},
      {"cut", "manifest.json", cut, ErrorCode::truncated},
      {"empty", "manifest.json", [](const fs::path& path) { write(path, ""); },
       ErrorCode::truncated},
      {"text", "manifest.json", [](const fs::path& path) { write(path, "hello"); },
       ErrorCode::bad_state},
      {"list", "manifest.json", [](const fs::path& path) { write(path, "[]"); },
       ErrorCode::bad_state},
      {"step", "manifest.json", replace("\"step\": 20", "\"step\": 21"),
       ErrorCode::checksum_mismatch},
      {"user", "manifest.json", replace("epoch", "epocx"), ErrorCode::checksum_mismatch},
      {"format", "manifest.json", replace("\"format\": 1", "\"format\": 2"),
       ErrorCode::bad_version},
  };
  for (const Disks disks : kDisks) {
    for (const Damage& damage : damages) {
      fs::remove_all(root_);
      fs::create_directory(root_);
      save_well(4, disks, 10, 2);
      save_well(4, disks, 20, 2);
      damage.apply(folder(disks, 2) / "step-000000000020" / damage.file);
      const auto errors = run_ranks(4, kTimeout, [&](Group& group) {
        const fs::path path = folder(disks, group.rank());
        std::string text;
        try {
          checkpoint::open(group, path);
          ADD_FAILURE() << damage.what << " " << damage.file;
        } catch (const Error& error) {
          text = error.what();
          EXPECT_EQ(error.code(), damage.code) << text;
        }
        for (const char* part : {damage.file, "rank ", "step-000000000020", "step-000000000010"}) {
          EXPECT_NE(text.find(part), std::string::npos) << text;
        }
        if (disks == Disks::own) {
          EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
        }
        EXPECT_EQ(checkpoint::open(group, path, 10)->step(), 10u) << "as the hint says";
        barrier(group);
      });
      for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
    }
  }
}

TEST_F(CheckpointDamage, AnyFlippedBitOfAManifestIsFound) {
  save_well(1, Disks::own, 10, 1);
  const fs::path path = folder(Disks::own, 0) / "step-000000000010" / "manifest.json";
  const std::string good = read(path);
  for (std::size_t i = 0; i < good.size(); ++i) {
    // White space is not part of what is said.
    if (good[i] == ' ' || good[i] == '\n') continue;
    flip(path, i);
    EXPECT_TRUE(checkpoint::describe(path.parent_path()).damage) << i;
    write(path, good);
  }
  for (std::size_t size = 0; size + 1 < good.size(); ++size) {
    write(path, good.substr(0, size));
    EXPECT_TRUE(checkpoint::describe(path.parent_path()).damage) << size;
  }
}

TEST_F(CheckpointDamage, AFileMissingOnOneDiskComesFromAnother) {
  save_well(3, Disks::own, 10, 1);
  fs::remove(folder(Disks::own, 1) / "step-000000000010" / "model.pt");
  fs::remove_all(folder(Disks::own, 2));
  fs::create_directory(folder(Disks::own, 2));
  fs::copy(folder(Disks::own, 0), folder(Disks::own, 2), fs::copy_options::recursive);
  const auto errors = run_ranks(3, kTimeout, [&](Group& group) {
    const std::string text = [&] {
      try {
        checkpoint::open(group, folder(Disks::own, group.rank()));
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string();
    }();
    EXPECT_NE(text.find("no rank sees the files of old rank 2"), std::string::npos) << text;
  });
  save_well(3, Disks::own, 10, 1);
  fs::remove(folder(Disks::own, 1) / "step-000000000010" / "model.pt");
  open_well(3, Disks::own, 10);
}

TEST_F(CheckpointDamage, DifferentCheckpointsOfOneStepAreRefused) {
  save_well(1, Disks::own, 10, 1, 1);
  fs::rename(folder(Disks::own, 0), folder(Disks::own, 1));
  save_well(1, Disks::own, 10, 1, 2);
  const auto errors = run_ranks(2, kTimeout, [&](Group& group) {
    try {
      checkpoint::open(group, folder(Disks::own, group.rank()));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::state_mismatch);
      for (const auto& path : {folder(Disks::own, 0), folder(Disks::own, 1)}) {
        EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
      }
    }
    barrier(group);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

/// Every rank must throw the same, and find the checkpoint of step 10 as it was.
void expect_failed_save(Group& group, const fs::path& folder, const std::function<void()>& save,
                        ErrorCode code, const std::vector<std::string>& parts) {
  try {
    save();
    ADD_FAILURE() << "saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  barrier(group);
  std::uint64_t step = 0;
  EXPECT_TRUE(test::check_opened(group, folder, step));
  EXPECT_EQ(step, 10u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "nothing temporary stays";
  barrier(group);
}

TEST_F(CheckpointDamage, AFolderThatCannotBeMadeFailsOnAllRanks) {
  save_well(3, Disks::own, 10, 1);
  write(root_ / "file", "");
  const auto errors = run_ranks(3, kTimeout, [&](Group& group) {
    const fs::path good = folder(Disks::own, group.rank());
    const fs::path path = group.rank() == 1 ? root_ / "file" / "folder" : good;
    expect_failed_save(group, good, [&] { test::save_at(group, path, 20, 1); }, ErrorCode::io,
                       {"rank 1", path == good ? "" : path.string(), "Not a directory"});
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST_F(CheckpointDamage, AFullDiskFailsOnAllRanks) {
  for (const Disks disks : kDisks) {
    save_well(4, disks, 10, 1);
    // No file may grow beyond 100 kB; only rank 2's state does.
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limited{100'000, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
    const auto errors = run_ranks(4, kTimeout, [&](Group& group) {
      const fs::path path = folder(disks, group.rank());
      State state({test::sparse("w", group.rank() == 2 ? 50'000 : 100)},
                  static_cast<std::uint32_t>(group.rank()), 4);
      expect_failed_save(group, path,
                         [&] { checkpoint::save(group, path, {.step = 20, .state = &state}, 1); },
                         ErrorCode::io, {"rank 2", "rank-00002.state", "too large"});
    });
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    ::signal(SIGXFSZ, handler);
    for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
    save_well(4, disks, 20, 1);
  }
}

TEST_F(CheckpointDamage, ARenameThatFailsIsTakenBackEverywhere) {
  // Something of another's has the name on one disk; the others have put theirs in place by then.
  save_well(3, Disks::own, 10, 1);
  write(folder(Disks::own, 2) / "step-000000000020", "another's");
  const auto errors = run_ranks(3, kTimeout, [&](Group& group) {
    const fs::path path = folder(Disks::own, group.rank());
    EXPECT_EQ(test::code_of([&] { test::save_at(group, path, 20, 1); }), ErrorCode::io);
    barrier(group);
    std::uint64_t step = 0;
    EXPECT_TRUE(test::check_opened(group, path, step));
    EXPECT_EQ(step, 10u);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  EXPECT_EQ(read(folder(Disks::own, 2) / "step-000000000020"), "another's");
  EXPECT_EQ(names_in(folder(Disks::own, 0)), (std::set<std::string>{"step-000000000010"}));
}

TEST_F(CheckpointDamage, BadArgumentsOfOneRankAreToldToAll) {
  save_well(2, Disks::shared, 10, 1);
  const State state = test::state_at(20, 0, 1);
  const std::string text = "text";
  const auto bytes = std::as_bytes(std::span(text));
  struct Case {
    checkpoint::Contents good;
    checkpoint::Contents bad;
    ErrorCode code;
    int keep = 1;
  };
  const checkpoint::Contents good = {.step = 20, .shared = {{"m", bytes}}, .state = &state};
  const auto changed = [&](const std::function<void(checkpoint::Contents&)>& change) {
    checkpoint::Contents contents = good;
    change(contents);
    return contents;
  };
  const auto shared = [&](std::vector<checkpoint::Blob> blobs) {
    return changed([&](checkpoint::Contents& c) { c.shared = std::move(blobs); });
  };
  const State later = test::state_at(21, 0, 1);
  const std::vector<Case> cases = {
      {good, changed([](auto& c) { c.state = nullptr; }), ErrorCode::invalid_argument},
      {good, changed([](auto& c) { c.user = "\xff"; }), ErrorCode::invalid_argument},
      {good, shared({{"../m", bytes}}), ErrorCode::invalid_argument},
      {good, shared({{"m", bytes}, {"m", bytes}}), ErrorCode::invalid_argument},
      {good, shared({{"manifest.json", bytes}}), ErrorCode::invalid_argument},
      {good, shared({{"rank-00000.state", bytes}}), ErrorCode::invalid_argument},
      {good, shared({{"", bytes}}), ErrorCode::invalid_argument},
      {good, good, ErrorCode::invalid_argument, 0},
      {good, good, ErrorCode::configuration_mismatch, 2},
      {good, changed([](auto& c) { c.step = 21; }), ErrorCode::configuration_mismatch},
      {good, changed([&](auto& c) { c.state = &later; }), ErrorCode::configuration_mismatch},
      {good, shared({{"n", bytes}}), ErrorCode::configuration_mismatch},
      {good, shared({}), ErrorCode::configuration_mismatch},
      {good, shared({{"m", bytes.first(3)}}), ErrorCode::diverged},
  };
  for (const Case& one : cases) {
    const auto errors = run_ranks(2, kTimeout, [&](Group& group) {
      const fs::path path = folder(Disks::shared, 0);
      const bool bad = group.rank() == 1;
      expect_failed_save(
          group, path,
          [&] { checkpoint::save(group, path, bad ? one.bad : one.good, bad ? one.keep : 1); },
          one.code, {"rank 1"});
    });
    for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  }
}

TEST_F(CheckpointDamage, AStateThatDoesNotFitChangesNoRank) {
  save_well(2, Disks::shared, 10, 1);
  const auto errors = run_ranks(3, kTimeout, [&](Group& group) {
    const auto found = checkpoint::open(group, folder(Disks::shared, 0));
    auto model = test::checkpoint_model();
    if (group.rank() == 1) model[0].shape = {20, 31};
    State state(model, static_cast<std::uint32_t>(group.rank()), 3);
    state.residual(0)[0] = 3.0f;
    try {
      found->load_state(state);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::shape_mismatch);
      for (const char* part : {"rank 1", "rank-00001.state", "20x30", "20x31"}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
    EXPECT_EQ(state.residual(0)[0], 3.0f);
    EXPECT_EQ(test::code_of([&] { static_cast<void>(found->shared("other")); }),
              ErrorCode::invalid_argument);
    barrier(group);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

}  // namespace
}  // namespace dgc
