// What members and the hub have on their disks, cut off or damaged at any byte.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "hub/journal.h"
#include "hub/sent_log.h"
#include "support/helpers.h"
#include "toy.h"

namespace dgc {
namespace {

namespace fs = std::filesystem;
using hub::Bytes;
using hub::Journal;
using hub::Outcome;
using hub::Right;
using hub::SentLog;
using test::code_of;
using test::Toy;
using test::ToyPlan;

std::string contents(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
}

TEST(SentLog, AnyBeginningHasTheWholeEntriesOfIt) {
  const TemporaryFolder folder("dgc-", test::fast_folder());
  const fs::path file = folder / "log";
  std::vector<std::size_t> ends;  // of sent(1), settled(1), sent(2), sent(4), settled(4)
  {
    SentLog log(file);
    const auto end = [&] { ends.push_back(fs::file_size(file)); };
    log.sent(1, 10, Bytes(100, std::byte{1})), end();
    log.settled(1, Outcome::committed), end();
    log.sent(2, 20, Bytes()), end();
    log.sent(4, 30, Bytes(5, std::byte{4})), end();
    log.settled(4, Outcome::taken_back), end();
  }
  const std::string all = contents(file);
  const auto check = [&](const std::vector<SentLog::Entry>& entries, std::size_t size) {
    ASSERT_EQ(entries.size(), (size >= ends[0]) + (size >= ends[2]) + (size >= ends[3]) + 0u);
    if (size < ends[0]) return;
    EXPECT_EQ(entries[0].sequence, 1u);
    EXPECT_EQ(entries[0].examples, 10u);
    EXPECT_EQ(entries[0].message, Bytes(100, std::byte{1}));
    EXPECT_EQ(entries[0].outcome, size >= ends[1] ? Outcome::committed : Outcome::none);
    if (entries.size() < 3) return;
    EXPECT_EQ(entries[2].sequence, 4u);
    EXPECT_EQ(entries[2].outcome, size >= ends[4] ? Outcome::taken_back : Outcome::none);
  };
  for (std::size_t size = 0; size <= all.size(); ++size) {
    write(file, all.substr(0, size));
    check(SentLog::read(file), size);
    // What a disk may leave behind: zeros in place of what was being written.
    write(file, all.substr(0, size) + std::string(all.size() - size + 8, '\0'));
    check(SentLog::read(file), size);
  }
  for (std::size_t at = 0; at < all.size(); ++at) {
    std::string damaged = all;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    write(file, damaged);
    // Everything before it is good, nothing after it is trusted.
    std::size_t good = 0;
    for (const std::size_t end : ends) good = end <= at ? end : good;
    check(SentLog::read(file), good);
  }
  EXPECT_TRUE(SentLog::read(folder / "none").empty());
}

TEST(SentLog, CanBeMadeAnewAndKnowsWhatWasNamed) {
  const TemporaryFolder folder("dgc-", test::fast_folder());
  const fs::path file = folder / "log";
  const Bytes message(7, std::byte{3});
  SentLog::write(file,
                 {{.sequence = 5, .examples = 8, .outcome = Outcome::committed, .message = message},
                  {.sequence = 6, .examples = 9, .outcome = Outcome::none, .message = {}}});
  { SentLog(file).named(5); }
  auto entries = SentLog::read(file);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].outcome, Outcome::committed);
  EXPECT_EQ(entries[0].message, message);
  EXPECT_EQ(entries[1].examples, 9u);
  EXPECT_TRUE(entries[0].named);
  EXPECT_FALSE(entries[1].named);
  SentLog::write(file, entries);
  { SentLog(file).sent(7, 1, message); }
  entries = SentLog::read(file);
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_TRUE(entries[0].named);
  EXPECT_FALSE(entries[2].named);
}

TEST(SavedResidual, AMemberThatIsKilledAtAnyByteOfItsLog) {
  for (std::size_t cut = 0; cut < 120; cut += 9) {
    for (const bool torn : {false, true}) {
      ToyPlan plan{.epochs = 1.0};
      plan.terms.momentum = 0.5f;
      plan.terms.save_every = 5;
      Toy toy(plan);
      for (const char* name : {"a", "b"}) toy.join(name);
      ASSERT_TRUE(toy.run_until(10.0, [&] {
        return toy.member("b").sequence() == 8 && toy.member("b").todo() == hub::Todo::compute;
      }));
      toy.local->kill("b");
      const fs::path log = toy.folder() / "b" / "sent-000000005.log";
      std::string text = contents(log);
      if (torn) {
        // The next message was being written, and so was never sent.
        text += text.substr(0, cut + 1);
      } else {
        // What became of the last message was being written: the hub knows it, too.
        const SentLog::Entry last = SentLog::read(log).back();
        ASSERT_EQ(last.outcome, Outcome::committed);
        text = text.substr(0, text.size() - std::min<std::size_t>(cut, 58));
      }
      write(log, text);
      toy.join("b");
      ASSERT_TRUE(toy.finish());
      EXPECT_EQ(toy.lost("b"), 3u);
      toy.check();
      if (HasFailure()) FAIL() << "cut off by " << cut << (torn ? ", torn" : "");
    }
  }
}

TEST(SavedResidual, ADamagedOneIsRefused) {
  Toy toy({});
  for (const char* name : {"a", "b"}) toy.join(name);
  ASSERT_TRUE(toy.run_rounds(6));
  toy.local->kill("b");
  for (const auto& entry : fs::directory_iterator(toy.folder() / "b")) {
    if (entry.path().extension() != ".state") continue;
    std::string text = contents(entry.path());
    text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 1);
    write(entry.path(), text);
  }
  toy.join("b");
  EXPECT_EQ(code_of([&] { toy.finish(); }), ErrorCode::checksum_mismatch);
}

TEST(SavedResidual, AFolderOfAnotherRunIsRefused) {
  const TemporaryFolder folder("dgc-", test::fast_folder());
  const auto member = [&](const std::string& run) {
    hub::Member(test::kToyModel, {}, {.run = run, .folder = folder / "m"});
  };
  member("one");
  member("one");
  EXPECT_EQ(code_of([&] { member("two"); }), ErrorCode::state_mismatch);
}

TEST(SavedResidual, WhatAKilledProcessDidNotFinishIsRemoved) {
  const TemporaryFolder folder("dgc-", test::fast_folder());
  const auto member = [&] {
    hub::Member(test::kToyModel, {}, {.run = "one", .folder = folder / "m"});
  };
  member();
  std::ofstream(folder / "m" / "residual-000000004.state.tmp123") << "half";
  member();
  const auto left = std::filesystem::directory_iterator(folder / "m");
  EXPECT_EQ(std::distance(begin(left), end(left)), 1) << "the run's name alone";
}

TEST(Journal, TokensAreKnownByTheirTextAlone) {
  const TemporaryFolder folder("dgc-", test::fast_folder());
  Journal journal(folder / "j", /*create=*/true);
  const std::string token = journal.add_token("anna", Right::work, 1.0);
  journal.add_token("reader", Right::read, 1.0);
  ASSERT_TRUE(journal.check_token(token));
  EXPECT_EQ(journal.check_token(token)->name, "anna");
  EXPECT_EQ(journal.check_token(token)->right, Right::work);
  for (std::size_t i = 0; i < token.size(); ++i) {
    std::string other = token;
    other[i] = other[i] == 'a' ? 'b' : 'a';
    EXPECT_EQ(journal.check_token(other).has_value(), other == token) << other;
    EXPECT_FALSE(journal.check_token(token.substr(0, i)));
  }
  EXPECT_FALSE(journal.check_token(token + "a"));
  // It is stored nowhere.
  EXPECT_EQ(contents(folder / "j").find(token.substr(5)), std::string::npos);
  EXPECT_EQ(contents(folder / "j-wal").find(token.substr(5)), std::string::npos);
  const std::string second = journal.add_token("anna", Right::work, 2.0);
  EXPECT_FALSE(journal.check_token(token)) << "the new one takes its place";
  EXPECT_TRUE(journal.revoke_token("anna"));
  EXPECT_FALSE(journal.check_token(second));
  EXPECT_FALSE(journal.revoke_token("nobody"));
  EXPECT_EQ(journal.tokens().size(), 2u);
  for (const char* name : {"", "a b", "a.b", "ä", "../x"}) {
    EXPECT_EQ(code_of([&] { journal.add_token(name, Right::work, 0.0); }),
              ErrorCode::invalid_argument);
  }
}

TEST(Journal, EverythingComesBack) {
  const TemporaryFolder folder("dgc-", test::fast_folder());
  const Bytes packet(3, std::byte{7});
  {
    Journal journal(folder / "j", /*create=*/true);
    journal.set_fact("run", "x");
    journal.set_fact("run", "y");
    hub::MemberLine line{.saved = 4, .bytes_up = 5, .bytes_down = 6, .examples = 7};
    line.rounds = {.sequence = UINT64_MAX >> 2,
                   .outcome = Outcome::taken_back,
                   .outcome_round = 2,
                   .base = 3,
                   .rounds = 8,
                   .late = 9};
    line.revoked_after = 0;
    journal.save_member("anna", line);
    for (std::uint64_t r = 1; r <= 9; ++r) {
      journal.add_commit({.round = r, .time = 1.5, .loss = 0.25, .examples = r * 32}, packet, {});
    }
    journal.drop_commits(4);
    journal.add_snapshot(4, "four");
    journal.add_snapshot(8, "eight");
    journal.add_evaluation(
        {.round = 3, .loss = 1, .metric = 2, .metrics = {{"top1", 2}}, .member = "anna"}, 9.0);
    for (int i = 0; i < 5; ++i) journal.add_event({1.0 * i, 3, "anna", fmt::format("event {}", i)});
    EXPECT_NE(code_of([&] { journal.add_commit({.round = 9}, packet, {}); }), ErrorCode::ok)
        << "a round twice";
  }
  Journal journal(folder / "j", /*create=*/false);
  EXPECT_EQ(journal.fact("run"), "y");
  EXPECT_FALSE(journal.fact("none"));
  const auto members = journal.members();
  ASSERT_EQ(members.size(), 1u);
  const hub::MemberLine& anna = members.at("anna");
  EXPECT_EQ(anna.rounds.sequence, UINT64_MAX >> 2);
  EXPECT_EQ(anna.rounds.outcome, Outcome::taken_back);
  EXPECT_EQ(anna.rounds.late, 9u);
  EXPECT_EQ(anna.saved, 4u);
  EXPECT_EQ(anna.revoked_after, 0u);
  EXPECT_EQ(journal.last_commit()->round, 9u);
  EXPECT_EQ(journal.last_commit()->examples, 288u);
  EXPECT_EQ(journal.first_commit(), 5u);
  EXPECT_FALSE(journal.commit_packet(4));
  EXPECT_EQ(journal.commit_packet(5), packet);
  EXPECT_EQ(journal.commit_bytes(5, 7), 6u);
  EXPECT_EQ(journal.commits(100).size(), 9u);
  EXPECT_LE(journal.commits(3).size(), 5u);
  EXPECT_EQ(journal.snapshots().front(), std::pair(std::uint64_t{8}, std::string("eight")));
  EXPECT_EQ(journal.evaluations().at(0).metrics.at(0).first, "top1");
  EXPECT_EQ(journal.events(2).at(0).what, "event 4");
  EXPECT_EQ(code_of([&] { Journal(folder / "j", /*create=*/true); }), ErrorCode::io);
  EXPECT_EQ(code_of([&] { Journal(folder / "none", /*create=*/false); }), ErrorCode::io);
}

/// A copy of a hub's folder, of a run after some rounds.
struct Copy {
  explicit Copy(const ToyPlan& the_plan, std::uint64_t rounds) : plan(the_plan) {
    Toy toy(plan);
    for (const char* name : {"a", "b"}) toy.join(name);
    std::uintmax_t size = 0;
    const fs::path wal = toy.folder() / "hub" / "hub.sqlite-wal";
    toy.run_until(100.0, [&] {
      if (toy.lines.size() < rounds) {
        size = fs::file_size(wal);
        before = toy.local->hub()->replica() != nullptr ? toy.local->hub()->replica()->hash() : 0;
      }
      return toy.lines.size() >= rounds;
    });
    after = toy.local->hub()->replica()->hash();
    first = static_cast<std::size_t>(size);
    fs::copy(toy.folder() / "hub", folder / "hub", fs::copy_options::recursive);
    fs::remove(folder / "hub" / "hub.sqlite-shm");
  }

  /// The hash after a start from the folder `at`.
  std::uint64_t start(const fs::path& at, std::uint64_t* round = nullptr) const {
    Journal journal(at / hub::kJournalFile, /*create=*/false);
    hub::HubPlan hub_plan{.epochs = plan.epochs, .batch = plan.batch};
    hub_plan.pace = [](const auto&) { return hub::HubPlan::Pace{}; };
    hub::Hub hub(at, journal, {.terms = plan.terms}, hub_plan, {});
    hub.status(1.0);
    if (round != nullptr) *round = hub.round();
    return hub.replica() != nullptr ? hub.replica()->hash() : 0;
  }

  ToyPlan plan;
  TemporaryFolder folder{"dgc-", test::fast_folder()};
  std::uint64_t before = 0, after = 0;  // hashes, of the last commit
  std::size_t first = 0;                // where it begins in the log of the database
};

TEST(Journal, AHubThatIsKilledAtAnyByteOfACommitHasItOrNot) {
  for (const hub::Down down : {hub::Down::forward, hub::Down::select}) {
    ToyPlan plan;
    plan.terms.down = down;
    const Copy copy(plan, 12);
    const std::string log = contents(copy.folder / "hub" / "hub.sqlite-wal");
    ASSERT_LT(copy.first, log.size());
    bool had[2] = {false, false};
    for (std::size_t size = copy.first; size <= log.size();
         size += size + 97 < log.size() ? 97 : 1) {
      const TemporaryFolder work("dgc-", test::fast_folder());
      fs::copy(copy.folder / "hub", work / "hub", fs::copy_options::recursive);
      write(work / "hub" / "hub.sqlite-wal", log.substr(0, size));
      std::uint64_t round = 0;
      const std::uint64_t hash = copy.start(work / "hub", &round);
      ASSERT_TRUE(round == 11 || round == 12) << round;
      ASSERT_EQ(hash, round == 11 ? copy.before : copy.after);
      had[round - 11] = true;
    }
    EXPECT_TRUE(had[0]);
    EXPECT_TRUE(had[1]);
  }
}

TEST(Journal, ADamagedFolderIsRefusedOrHarmless) {
  ToyPlan plan;
  plan.terms.down = hub::Down::select;
  const Copy copy(plan, 12);
  // All in one file.
  { const Journal merged(copy.folder / "hub" / hub::kJournalFile, /*create=*/false); }
  std::mt19937 random(1);
  int refused = 0;
  for (const auto& entry : fs::directory_iterator(copy.folder / "hub")) {
    const std::string good = contents(entry.path());
    if (good.empty()) continue;
    for (int i = 0; i < test::repeats(300, 50); ++i) {
      std::string bad = good;
      const std::size_t at = random() % bad.size();
      bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
      if (i % 10 == 0) bad.resize(at);
      write(entry.path(), bad);
      std::uint64_t hash = 0, round = 0;
      if (code_of([&] { hash = copy.start(copy.folder / "hub", &round); }) != ErrorCode::ok) {
        ++refused;
      } else if (round == 12) {
        EXPECT_EQ(hash, copy.after) << entry.path().filename() << " at " << at;
      }
      fs::remove(copy.folder / "hub" / "hub.sqlite-wal");
      fs::remove(copy.folder / "hub" / "hub.sqlite-shm");
      write(entry.path(), good);
    }
  }
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace dgc
