#include "hub/journal.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>

#include "dgc/error.h"
#include "engine/secret.h"

namespace dgc::hub {
namespace {

constexpr const char* kTables = R"(
CREATE TABLE facts (key TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE tokens (name TEXT PRIMARY KEY, right TEXT NOT NULL, hash BLOB NOT NULL,
                     created REAL NOT NULL, revoked INTEGER NOT NULL DEFAULT 0);
CREATE TABLE members (name TEXT PRIMARY KEY, sequence INTEGER NOT NULL, outcome INTEGER NOT NULL,
                      outcome_round INTEGER NOT NULL, base INTEGER NOT NULL, rounds INTEGER NOT NULL,
                      late INTEGER NOT NULL, saved INTEGER NOT NULL, bytes_up INTEGER NOT NULL,
                      bytes_down INTEGER NOT NULL, examples INTEGER NOT NULL,
                      revoked_after INTEGER);
CREATE TABLE commits (round INTEGER PRIMARY KEY, time REAL NOT NULL, seconds REAL NOT NULL,
                      loss REAL NOT NULL, lr REAL NOT NULL, ratio REAL NOT NULL,
                      examples INTEGER NOT NULL, members INTEGER NOT NULL,
                      bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL,
                      packet BLOB, inbox BLOB);
CREATE INDEX commits_kept ON commits (round) WHERE packet IS NOT NULL;
CREATE TABLE evaluations (round INTEGER NOT NULL, time REAL NOT NULL, loss REAL NOT NULL,
                          metric REAL NOT NULL, metrics TEXT NOT NULL, member TEXT NOT NULL);
CREATE TABLE events (time REAL NOT NULL, round INTEGER NOT NULL, member TEXT NOT NULL,
                     what TEXT NOT NULL);
CREATE TABLE snapshots (round INTEGER PRIMARY KEY, file TEXT NOT NULL);
PRAGMA user_version = 1;
)";

using Hash = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

/// Tokens have 128 random bits, so that one round of SHA-256 is enough.
Hash hash_of(std::string_view text) {
  Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  return hash;
}

Right right_named(const std::string& name) {
  for (const Right right : {Right::work, Right::invite, Right::read}) {
    if (name_of(right) == name) return right;
  }
  throw Error(ErrorCode::bad_state, "hub", "token", "has an unknown right");
}

std::uint64_t unsigned_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

CommitLine commit_line(const Statement& row) {
  return {.round = unsigned_of(row.integer(0)),
          .time = row.real(1),
          .seconds = row.real(2),
          .loss = row.real(3),
          .lr = row.real(4),
          .ratio = row.real(5),
          .examples = unsigned_of(row.integer(6)),
          .members = unsigned_of(row.integer(7)),
          .bytes_up = unsigned_of(row.integer(8)),
          .bytes_down = unsigned_of(row.integer(9))};
}
constexpr const char* kFigures =
    "SELECT round, time, seconds, loss, lr, ratio, examples, members, bytes_up, bytes_down FROM "
    "commits ";

}  // namespace

std::string_view name_of(Right right) noexcept {
  switch (right) {
    case Right::work:
      return "work";
    case Right::invite:
      return "invite";
    case Right::read:
      return "read";
  }
  return "";
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

std::string name_in_token(std::string_view text) {
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos || !is_name(text.substr(0, dot))) return {};
  return std::string(text.substr(0, dot));
}

Journal::Journal(const std::filesystem::path& file, bool create) : database_(file, create) {
  Statement version(database_.get(), "PRAGMA user_version");
  version.step();
  const std::int64_t found = version.integer(0);
  if (create) {
    if (found != 0) {
      throw Error(ErrorCode::io, "serve", file.parent_path().string(), "has a run already",
                  "go on with --resume, or choose another --out");
    }
    database_.execute("BEGIN IMMEDIATE");
    database_.execute(kTables);
    database_.execute("COMMIT");
  } else if (found != 1) {
    throw Error(ErrorCode::bad_version, "hub", file.string(),
                fmt::format("is of version {}; this dgc knows version 1", found));
  }
}

std::optional<std::string> Journal::fact(const std::string& key) {
  Statement query(database_.get(), "SELECT value FROM facts WHERE key = ?");
  query.bind(key);
  if (!query.step()) return std::nullopt;
  return query.text(0);
}

void Journal::set_fact(const std::string& key, std::string_view value) {
  Statement(database_.get(), "INSERT OR REPLACE INTO facts VALUES (?, ?)")
      .bind(key)
      .bind(std::as_bytes(std::span(value)))
      .run();
}

std::string Journal::add_token(const std::string& name, Right right, double now) {
  if (!is_name(name)) {
    throw Error(ErrorCode::invalid_argument, "token", fmt::format("name '{}'", name),
                "is no name of a member", "use 1 to 64 letters, digits, '-' and '_'");
  }
  std::string text = name + "." + detail::new_secret();
  const Hash hash = hash_of(text);
  Statement(database_.get(), "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?, 0)")
      .bind(name)
      .bind(name_of(right))
      .bind(std::as_bytes(std::span(hash)))
      .bind(now)
      .run();
  return text;
}

std::vector<TokenLine> Journal::tokens() {
  Statement query(database_.get(),
                  "SELECT name, right, created, revoked FROM tokens ORDER BY name");
  std::vector<TokenLine> lines;
  while (query.step()) {
    lines.push_back({.name = query.text(0),
                     .right = right_named(query.text(1)),
                     .created = query.real(2),
                     .revoked = query.integer(3) != 0});
  }
  return lines;
}

bool Journal::revoke_token(const std::string& name) {
  Statement query(database_.get(), "UPDATE tokens SET revoked = 1 WHERE name = ? RETURNING name");
  return query.bind(name).step();
}

std::optional<TokenLine> Journal::check_token(std::string_view text) {
  const Hash given = hash_of(text);
  const std::string name = name_in_token(text);
  Statement query(database_.get(),
                  "SELECT right, created, revoked, hash FROM tokens WHERE name = ?");
  query.bind(name);
  std::vector<std::byte> kept(given.size());
  std::optional<TokenLine> line;
  if (query.step()) {
    kept = query.blob(3);
    line = {.name = name,
            .right = right_named(query.text(0)),
            .created = query.real(1),
            .revoked = query.integer(2) != 0};
  }
  const bool same = detail::same(std::as_bytes(std::span(given)), kept);
  if (!same || !line || line->revoked) return std::nullopt;
  return line;
}

std::map<std::string, MemberLine> Journal::members() {
  Statement query(database_.get(),
                  "SELECT name, sequence, outcome, outcome_round, base, rounds, late, saved, "
                  "bytes_up, bytes_down, examples, revoked_after FROM members");
  std::map<std::string, MemberLine> members;
  while (query.step()) {
    MemberLine& line = members[query.text(0)];
    line.rounds.sequence = unsigned_of(query.integer(1));
    line.rounds.outcome = static_cast<Outcome>(query.integer(2));
    line.rounds.outcome_round = unsigned_of(query.integer(3));
    line.rounds.base = unsigned_of(query.integer(4));
    line.rounds.rounds = unsigned_of(query.integer(5));
    line.rounds.late = unsigned_of(query.integer(6));
    line.saved = unsigned_of(query.integer(7));
    line.bytes_up = unsigned_of(query.integer(8));
    line.bytes_down = unsigned_of(query.integer(9));
    line.examples = unsigned_of(query.integer(10));
    if (!query.is_null(11)) line.revoked_after = unsigned_of(query.integer(11));
  }
  return members;
}

void Journal::save_member(const std::string& name, const MemberLine& member) {
  Statement insert(database_.get(),
                   "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  insert.bind(name)
      .bind(member.rounds.sequence)
      .bind(static_cast<std::int64_t>(member.rounds.outcome))
      .bind(member.rounds.outcome_round)
      .bind(member.rounds.base)
      .bind(member.rounds.rounds)
      .bind(member.rounds.late)
      .bind(member.saved)
      .bind(member.bytes_up)
      .bind(member.bytes_down)
      .bind(member.examples);
  member.revoked_after ? insert.bind(*member.revoked_after) : insert.bind_null();
  insert.run();
}

void Journal::add_commit(const CommitLine& line, std::span<const std::byte> packet,
                         std::span<const std::byte> inbox) {
  Statement(database_.get(), "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
      .bind(line.round)
      .bind(line.time)
      .bind(line.seconds)
      .bind(line.loss)
      .bind(line.lr)
      .bind(line.ratio)
      .bind(line.examples)
      .bind(line.members)
      .bind(line.bytes_up)
      .bind(line.bytes_down)
      .bind(packet)
      .bind(inbox)
      .run();
}

std::optional<Bytes> Journal::commit_packet(std::uint64_t round) {
  Statement query(database_.get(),
                  "SELECT packet FROM commits WHERE round = ? AND packet IS NOT NULL");
  if (!query.bind(round).step()) return std::nullopt;
  return query.blob(0);
}

std::optional<Bytes> Journal::commit_inbox(std::uint64_t round) {
  Statement query(database_.get(),
                  "SELECT inbox FROM commits WHERE round = ? AND packet IS NOT NULL");
  if (!query.bind(round).step()) return std::nullopt;
  return query.blob(0);
}

std::uint64_t Journal::commit_bytes(std::uint64_t after, std::uint64_t to) {
  Statement query(database_.get(),
                  "SELECT COALESCE(SUM(LENGTH(packet)), 0) FROM commits WHERE round > ? AND round "
                  "<= ?");
  query.bind(after).bind(to).step();
  return unsigned_of(query.integer(0));
}

std::optional<std::uint64_t> Journal::first_commit() {
  Statement query(database_.get(), "SELECT MIN(round) FROM commits WHERE packet IS NOT NULL");
  query.step();
  if (query.is_null(0)) return std::nullopt;
  return unsigned_of(query.integer(0));
}

void Journal::drop_commits(std::uint64_t up_to) {
  Statement(database_.get(),
            "UPDATE commits SET packet = NULL, inbox = NULL WHERE round <= ? AND packet IS NOT "
            "NULL")
      .bind(up_to)
      .run();
}

std::vector<CommitLine> Journal::commits(std::size_t most) {
  const auto last = last_commit();
  if (!last) return {};
  const std::uint64_t parts = std::max<std::size_t>(most, 1);
  const std::uint64_t each = std::max<std::uint64_t>(1, (last->round + parts - 1) / parts);
  Statement query(database_.get(),
                  std::string(kFigures) + "WHERE round % ? = 0 OR round = ? ORDER BY round");
  query.bind(each).bind(last->round);
  std::vector<CommitLine> lines;
  while (query.step()) lines.push_back(commit_line(query));
  return lines;
}

std::optional<CommitLine> Journal::last_commit() {
  Statement query(database_.get(), std::string(kFigures) + "ORDER BY round DESC LIMIT 1");
  if (!query.step()) return std::nullopt;
  return commit_line(query);
}

void Journal::add_evaluation(const EvaluationNote& note, double now) {
  nlohmann::json metrics = nlohmann::json::array();
  for (const auto& [name, value] : note.metrics) metrics.push_back({name, value});
  Statement(database_.get(), "INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?)")
      .bind(note.round)
      .bind(now)
      .bind(note.loss)
      .bind(note.metric)
      .bind(metrics.dump())
      .bind(note.member)
      .run();
}

std::vector<EvaluationNote> Journal::evaluations() {
  Statement query(database_.get(),
                  "SELECT round, loss, metric, metrics, member FROM evaluations ORDER BY round");
  std::vector<EvaluationNote> notes;
  while (query.step()) {
    EvaluationNote& note = notes.emplace_back();
    note.round = unsigned_of(query.integer(0));
    note.loss = query.real(1);
    note.metric = query.real(2);
    for (const nlohmann::json& metric : nlohmann::json::parse(query.text(3))) {
      note.metrics.emplace_back(metric.at(0), metric.at(1));
    }
    note.member = query.text(4);
  }
  return notes;
}

void Journal::add_event(const EventLine& event) {
  Statement(database_.get(), "INSERT INTO events VALUES (?, ?, ?, ?)")
      .bind(event.time)
      .bind(event.round)
      .bind(event.member)
      .bind(event.what)
      .run();
  // A hub that runs for months, or that is teased, does not fill the disk with this.
  Statement(database_.get(),
            "DELETE FROM events WHERE rowid <= (SELECT MAX(rowid) FROM events) - 10000")
      .run();
}

std::vector<EventLine> Journal::events(std::size_t most) {
  Statement query(database_.get(),
                  "SELECT time, round, member, what FROM events ORDER BY rowid DESC LIMIT ?");
  query.bind(static_cast<std::int64_t>(most));
  std::vector<EventLine> events;
  while (query.step()) {
    events.push_back({.time = query.real(0),
                      .round = unsigned_of(query.integer(1)),
                      .member = query.text(2),
                      .what = query.text(3)});
  }
  return events;
}

void Journal::add_snapshot(std::uint64_t round, const std::string& file) {
  Statement(database_.get(), "INSERT OR REPLACE INTO snapshots VALUES (?, ?)")
      .bind(round)
      .bind(file)
      .run();
}

std::vector<std::pair<std::uint64_t, std::string>> Journal::snapshots() {
  Statement query(database_.get(), "SELECT round, file FROM snapshots ORDER BY round DESC");
  std::vector<std::pair<std::uint64_t, std::string>> found;
  while (query.step()) found.emplace_back(unsigned_of(query.integer(0)), query.text(1));
  return found;
}

void Journal::drop_snapshot(std::uint64_t round) {
  Statement(database_.get(), "DELETE FROM snapshots WHERE round = ?").bind(round).run();
}

}  // namespace dgc::hub
