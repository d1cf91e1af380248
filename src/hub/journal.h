// What a hub writes down: the run, its tokens and members, commits, the index of snapshots, and who
// came and went. What was written has happened, whatever happens next.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hub/database.h"
#include "hub/packet.h"
#include "hub/rounds.h"

namespace dgc::hub {

/// What a token lets its owner do.
enum class Right {
  work,    ///< train as the member it names
  invite,  ///< get a token of one's own
  read,    ///< look at the run
};
std::string_view name_of(Right right) noexcept;

struct TokenLine {
  std::string name;
  Right right = Right::work;
  double created = 0.0;
  bool revoked = false;
};

/// A commit as the journal has it. The figures stay when the rest is dropped.
struct CommitLine {
  std::uint64_t round = 0;
  double time = 0.0;     ///< seconds since 1970
  double seconds = 0.0;  ///< that the round was open
  double loss = 0.0;     ///< mean over its examples, as members say
  double lr = 0.0, ratio = 1.0;
  std::uint64_t examples = 0;  ///< of all commits so far
  std::uint64_t members = 0;
  std::uint64_t bytes_up = 0, bytes_down = 0;  ///< of all members together
};

struct EvaluationNote {
  std::uint64_t round = 0;
  double loss = 0.0, metric = 0.0;
  std::vector<std::pair<std::string, double>> metrics;
  std::string member;
};

struct EventLine {
  double time = 0.0;
  std::uint64_t round = 0;
  std::string member;
  std::string what;
};

/// What the journal keeps of a member beside what Rounds knows.
struct MemberLine {
  Rounds::Member rounds;
  std::uint64_t saved = 0;  ///< the last message that is in its saved residual
  std::uint64_t bytes_up = 0, bytes_down = 0;
  std::uint64_t examples = 0;
  /// Messages after it are no part of its residual any more: what it had leased went to others.
  std::optional<std::uint64_t> revoked_after;
};

class Journal {
 public:
  /// `create` makes a new one, and fails where there is one already.
  Journal(const std::filesystem::path& file, bool create);

  std::optional<std::string> fact(const std::string& key);
  void set_fact(const std::string& key, std::string_view value);

  /// A new token of this name, in place of an old one. Returns its text, which is not kept.
  std::string add_token(const std::string& name, Right right, double now);
  std::vector<TokenLine> tokens();
  /// False where there is none of that name.
  bool revoke_token(const std::string& name);
  /// The name of a token that is good and has one of these rights. Takes as long for any text.
  std::optional<TokenLine> check_token(std::string_view text);

  std::map<std::string, MemberLine> members();
  void save_member(const std::string& name, const MemberLine& member);

  /// `inbox` is who sent what, where the commit does not have it (Down::select).
  void add_commit(const CommitLine& line, std::span<const std::byte> packet,
                  std::span<const std::byte> inbox);
  /// Nothing where it was dropped, or has not happened.
  std::optional<Bytes> commit_packet(std::uint64_t round);
  std::optional<Bytes> commit_inbox(std::uint64_t round);
  std::uint64_t commit_bytes(std::uint64_t after, std::uint64_t to);
  /// The first that is still there; nothing where there is none.
  std::optional<std::uint64_t> first_commit();
  /// Drops packets of rounds up to this one.
  void drop_commits(std::uint64_t up_to);
  /// At most `most` of them, evenly spread, and beside them the last.
  std::vector<CommitLine> commits(std::size_t most);
  std::optional<CommitLine> last_commit();

  void add_evaluation(const EvaluationNote& note, double now);
  std::vector<EvaluationNote> evaluations();
  void add_event(const EventLine& event);
  /// The newest first.
  std::vector<EventLine> events(std::size_t most);

  void add_snapshot(std::uint64_t round, const std::string& file);
  /// Rounds and names of files, the newest first.
  std::vector<std::pair<std::uint64_t, std::string>> snapshots();
  void drop_snapshot(std::uint64_t round);

  Database& database() noexcept { return database_; }

 private:
  Database database_;
};

/// "NAME.SECRET": the name of a token's text; empty where it has none.
std::string name_in_token(std::string_view text);
/// Letters, digits, '-', '_' ; 1 to 64 of them.
bool is_name(std::string_view name);
/// The same for a name that somebody wishes for: where it is taken, "-2" and so on follows.
inline constexpr std::size_t kLongestWish = 56;

}  // namespace dgc::hub
