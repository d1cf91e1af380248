#include "hub/audit.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <optional>

#include "base/file.h"
#include "dgc/error.h"
#include "hub/hub.h"
#include "hub/journal.h"
#include "hub/replica.h"

namespace dgc::hub {
namespace {

Replica replica_of(std::span<const std::byte> snapshot) {
  const nlohmann::json head = read_packet(snapshot).head;
  Replica replica(model_from(head.at("model"), kMaxElements),
                  model_from(head.at("buffers"), kMaxElements), terms_from(head.at("terms")));
  replica.load(snapshot);
  return replica;
}

void count(std::uint64_t round, const std::vector<Part>& parts, Audit& found) {
  for (const Part& part : parts) {
    Audit::Member& member = found.members[part.member];
    if (part.sequence <= member.last) {
      throw Error(ErrorCode::bad_state, "inspect",
                  fmt::format("message {} of '{}'", part.sequence, part.member),
                  fmt::format("is in commit {}, after message {}", round, member.last));
    }
    member.last = part.sequence;
    ++member.messages;
    member.examples += part.examples;
  }
  found.examples += examples_of(parts);
}

}  // namespace

Audit audit(const std::filesystem::path& folder) {
  Journal journal(folder / kJournalFile, /*create=*/false);
  Audit found{.run = journal.fact("run").value_or(""),
              .finished = journal.fact("finished").has_value()};
  auto snapshots = journal.snapshots();  // the newest first
  if (snapshots.empty()) return found;
  const MappedFile first(folder / snapshots.back().second);
  Replica replica = replica_of(first.contents());
  found.from = replica.round();
  const Terms terms = terms_from(read_packet(first.contents()).head.at("terms"));
  const bool selects = terms.down == Down::select;
  found.parameters = elements_of(replica.model());
  const auto last = journal.last_commit();
  found.to = last ? last->round : 0;
  for (std::uint64_t round = replica.round();; ++round) {
    while (!snapshots.empty() && snapshots.back().first == round) {
      const MappedFile file(folder / snapshots.back().second);
      if (replica_of(file.contents()).hash() != replica.hash()) {
        throw Error(ErrorCode::diverged, "inspect", snapshots.back().second,
                    "is not what the commits before it make");
      }
      ++found.snapshots;
      snapshots.pop_back();
    }
    if (round >= found.to) break;
    const auto packet = journal.commit_packet(round + 1);
    if (!packet) {
      throw Error(ErrorCode::io, "inspect", fmt::format("commit {}", round + 1),
                  "is missing in the journal");
    }
    const Commit commit = commit_from(*packet);
    count(commit.round,
          selects ? inbox_from(*journal.commit_inbox(commit.round)).parts : commit.parts, found);
    replica.apply(commit);
  }
  found.hash = replica.hash();
  return found;
}

SavedRun saved_run(const std::filesystem::path& folder) {
  Journal journal(folder / kJournalFile, /*create=*/false);
  const auto snapshots = journal.snapshots();
  if (snapshots.empty()) {
    throw Error(ErrorCode::io, "export", folder.string(), "has no parameters yet",
                "wait until a member has joined");
  }
  const MappedFile file(folder / snapshots.front().second);
  SavedRun run{.replica = replica_of(file.contents())};
  const Packet packet = read_packet(file.contents());
  if (packet.blobs.size() > Replica::first_extra()) {
    const auto bytes = packet.blob(Replica::first_extra());
    run.residual.resize(bytes.size() / sizeof(float));
    if (!run.residual.empty()) std::memcpy(run.residual.data(), bytes.data(), bytes.size());
  }
  for (const CommitLine& line : journal.commits(std::numeric_limits<std::size_t>::max())) {
    run.last_round = line.round;
    if (line.round <= run.replica.round()) run.examples = line.examples;
  }
  for (const EvaluationNote& note : journal.evaluations()) run.evaluation = note;
  if (const auto positions = journal.fact("positions")) run.positions = std::stoll(*positions);
  return run;
}

}  // namespace dgc::hub
