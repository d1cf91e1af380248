#include "checkpoint/survey.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "checkpoint/manifest.h"

namespace dgc::checkpoint {
namespace {

constexpr const char* kOperation = "open checkpoint";

void add_once(std::vector<std::uint64_t>& ids, std::uint64_t id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

}  // namespace

std::vector<std::uint64_t> Survey::steps() const {
  std::set<std::uint64_t, std::greater<>> steps;
  for (const auto& sightings : by_rank_) {
    for (const Sighting& sighting : sightings) {
      // A partial directory alone is no checkpoint: it may lack what other disks should have.
      if (sighting.stage != Stage::partial) steps.insert(sighting.step);
    }
  }
  return {steps.begin(), steps.end()};
}

const Sighting* Survey::find(int rank, std::uint64_t step, std::uint64_t id) const {
  const Sighting* best = nullptr;
  for (const Sighting& sighting : by_rank_[static_cast<std::size_t>(rank)]) {
    if (sighting.damage || sighting.step != step || sighting.id != id) continue;
    if (best == nullptr || sighting.stage < best->stage) best = &sighting;
  }
  return best;
}

int Survey::lowest(std::uint64_t step, std::uint64_t id) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (find(rank, step, id) != nullptr) return rank;
  }
  return -1;
}

int Survey::lowest_with(std::uint64_t step, std::uint64_t id, std::size_t file) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    const Sighting* const sighting = find(rank, step, id);
    if (sighting != nullptr && sighting->present[file] == '1') return rank;
  }
  return -1;
}

/// The ranks whose files nobody can have. A file that is gone from where it belongs is damage,
/// which open() reports; one whose whole disk has no such checkpoint only makes it incomplete.
std::string Survey::missing_of(std::uint64_t step, std::uint64_t id) const {
  const Sighting& any = *find(lowest(step, id), step, id);
  const std::size_t shared = any.present.size() - static_cast<std::size_t>(any.workers);
  std::vector<std::size_t> missing;
  for (std::size_t file = shared; file < any.present.size(); ++file) {
    bool covered = false;
    for (int rank = 0; rank < ranks() && !covered; ++rank) {
      const Sighting* const sighting = find(rank, step, id);
      covered = sighting != nullptr &&
                (sighting->present[file] == '1' || sighting->expected[file] == '1');
    }
    if (!covered) missing.push_back(file - shared);
  }
  if (missing.empty()) return "";
  return fmt::format("no rank sees the files of old rank {}", fmt::join(missing, ", "));
}

bool Survey::seen_by_all(std::uint64_t step, std::uint64_t id) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto& sightings = by_rank_[static_cast<std::size_t>(rank)];
    const bool any = std::any_of(sightings.begin(), sightings.end(), [&](const Sighting& sighting) {
      return sighting.step == step && sighting.stage != Stage::partial;
    });
    if (any && find(rank, step, id) == nullptr) return false;
  }
  return true;
}

std::optional<Error> Survey::damage_of(std::uint64_t step) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    const Sighting* damaged = nullptr;
    bool whole = false;
    for (const Sighting& sighting : by_rank_[static_cast<std::size_t>(rank)]) {
      if (sighting.step != step) continue;
      if (sighting.stage == Stage::whole) whole = true;
      // One that was replaced does not matter while there is what replaced it.
      if (sighting.damage && (sighting.stage == Stage::whole || damaged == nullptr)) {
        damaged = &sighting;
      }
    }
    if (damaged != nullptr && (damaged->stage == Stage::whole || !whole)) {
      return Error(damaged->damage->code(), kOperation, damaged->damage->subject(),
                   fmt::format("rank {}: {}", rank, damaged->damage->problem()));
    }
  }
  return std::nullopt;
}

Verdict Survey::judge(std::uint64_t step) const {
  Verdict verdict;
  if ((verdict.error = damage_of(step))) return verdict;
  std::vector<std::uint64_t> whole;
  std::vector<std::uint64_t> ids;
  for (const Stage stage : {Stage::whole, Stage::replaced}) {
    for (const auto& sightings : by_rank_) {
      for (const Sighting& sighting : sightings) {
        if (sighting.step != step || sighting.stage != stage || sighting.damage) continue;
        if (stage == Stage::whole) add_once(whole, sighting.id);
        add_once(ids, sighting.id);
      }
    }
  }
  // Disks that differ were interrupted while a step was replaced if each still has the one or the
  // other everywhere. If not, they were never of one run.
  const bool differ = whole.size() > 1;
  for (const std::uint64_t id : ids) {
    const std::string missing = missing_of(step, id);
    if (!missing.empty()) {
      if (verdict.missing.empty()) verdict.missing = missing;
    } else if (!differ || seen_by_all(step, id)) {
      verdict.id = id;
      return verdict;
    }
  }
  if (differ) {
    const int first = lowest(step, whole[0]);
    const int second = lowest(step, whole[1]);
    verdict.error =
        Error(ErrorCode::state_mismatch, kOperation, find(second, step, whole[1])->path,
              fmt::format("rank {} sees another checkpoint of step {} than rank {} in {}", second,
                          step, first, find(first, step, whole[0])->path),
              "keep the one that belongs to this run and move the other away");
  }
  return verdict;
}

}  // namespace dgc::checkpoint
