// A checkpoint counts when the disks that somebody sees hold all of it together. Three cases look
// alike and must be told apart: one that a killed save never finished (passed over), one whose disk
// is not there now (passed over), and one that was damaged afterwards (an error).
#include "checkpoint/inventory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "checkpoint/disk.h"

namespace dgc::checkpoint {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;

constexpr const char* kOperation = "open checkpoint";

/// Nothing for a directory without a manifest, which is none of ours or was never finished.
std::optional<Sighting> look_at(const fs::path& directory, const StepName& name) {
  if (!fs::is_directory(directory) || !fs::exists(directory / kManifestName)) return std::nullopt;
  Sighting sighting;
  sighting.path = directory.string();
  sighting.step = name.step;
  sighting.stage = name.stage;
  Manifest manifest;
  try {
    manifest = read_manifest(directory);
  } catch (const Error& error) {
    if (name.stage == Stage::partial) return std::nullopt;
    sighting.damage = error;
    return sighting;
  }
  sighting.id = manifest.id();
  sighting.workers = manifest.workers;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    sighting.present.push_back(fs::is_regular_file(directory / manifest.files[i].name));
    sighting.expected.push_back(i < manifest.shared_files());
  }
  for (const int rank : manifest.ranks_here) sighting.expected[manifest.rank_file(rank)] = true;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const auto rank = parse_rank_file_name(entry.path().filename().string());
    if (rank && *rank >= manifest.workers) sighting.stray = entry.path().string();
  }
  return sighting;
}

std::vector<Sighting> sightings_in(const fs::path& folder, std::optional<std::uint64_t> step = {}) {
  std::vector<Sighting> sightings;
  if (!fs::exists(folder)) return sightings;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = parse_step_name(entry.path().filename().string());
    if (!name || name->stage == Stage::gone || (step && name->step != *step)) continue;
    if (auto sighting = look_at(entry.path(), *name)) sightings.push_back(std::move(*sighting));
  }
  return sightings;
}

json to_json(const std::vector<Sighting>& sightings) {
  json all = json::array();
  for (const Sighting& s : sightings) {
    json one = {{"path", s.path}, {"step", s.step}, {"stage", static_cast<int>(s.stage)}};
    if (s.damage) {
      one["damage"] = {static_cast<int>(s.damage->code()), s.damage->subject(),
                       s.damage->problem()};
    } else {
      one["id"] = s.id;
      one["present"] = s.present;
      one["expected"] = s.expected;
      one["workers"] = s.workers;
      one["stray"] = s.stray;
    }
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<Sighting> sightings_from(const json& value) {
  std::vector<Sighting> sightings;
  for (const json& one : value) {
    Sighting& s = sightings.emplace_back();
    s.path = one.at("path");
    s.step = one.at("step");
    s.stage = static_cast<Stage>(one.at("stage").get<int>());
    if (one.contains("damage")) {
      const json& damage = one["damage"];
      s.damage.emplace(static_cast<ErrorCode>(damage.at(0).get<int>()), "read manifest",
                       damage.at(1).get<std::string>(), damage.at(2).get<std::string>());
    } else {
      s.id = one.at("id");
      s.present = one.at("present").get<std::vector<bool>>();
      s.expected = one.at("expected").get<std::vector<bool>>();
      s.workers = one.at("workers");
      s.stray = one.at("stray");
    }
  }
  return sightings;
}

void add_once(std::vector<std::uint64_t>& ids, std::uint64_t id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

}  // namespace

Description describe(const fs::path& directory) {
  Description description;
  description.path = directory;
  if (!fs::is_directory(directory)) {
    throw Error(ErrorCode::io, "describe checkpoint", directory.string(), "is not a directory");
  }
  try {
    description.manifest = read_manifest(directory);
  } catch (const Error& error) {
    description.damage = error;
    return description;
  }
  const Manifest& manifest = description.manifest;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    Description::File& file = description.files.emplace_back();
    file.entry = manifest.files[i];
    const fs::path path = directory / file.entry.name;
    const auto& here = manifest.ranks_here;
    const bool belongs = i < manifest.shared_files() ||
                         std::find(here.begin(), here.end(),
                                   static_cast<int>(i - manifest.shared_files())) != here.end();
    file.elsewhere = !belongs && !fs::exists(path);
    if (file.elsewhere) continue;
    try {
      const MappedFile mapped(path);
      check_bytes(mapped.contents(), file.entry, path.string());
    } catch (const Error& error) {
      file.damage = error;
      if (!description.damage) description.damage = error;
    }
  }
  return description;
}

std::vector<fs::path> list(const fs::path& folder) {
  std::vector<Sighting> sightings = sightings_in(folder);
  std::sort(sightings.begin(), sightings.end(), [](const Sighting& a, const Sighting& b) {
    return a.step != b.step ? a.step > b.step : a.stage < b.stage;
  });
  std::vector<fs::path> paths;
  for (const Sighting& sighting : sightings) paths.emplace_back(sighting.path);
  return paths;
}

json look_into(const fs::path& folder, std::optional<std::uint64_t> step) {
  return to_json(sightings_in(folder, step));
}

Inventory::Inventory(const std::vector<json>& by_rank) {
  for (const json& sightings : by_rank) by_rank_.push_back(sightings_from(sightings));
}

std::vector<std::uint64_t> Inventory::steps() const {
  std::set<std::uint64_t, std::greater<>> steps;
  for (const auto& sightings : by_rank_) {
    for (const Sighting& sighting : sightings) {
      // A partial directory alone is no checkpoint: it may lack what other disks should have.
      if (sighting.stage != Stage::partial) steps.insert(sighting.step);
    }
  }
  return {steps.begin(), steps.end()};
}

const Sighting* Inventory::find(int rank, std::uint64_t step, std::uint64_t id) const {
  const Sighting* best = nullptr;
  for (const Sighting& sighting : by_rank_[static_cast<std::size_t>(rank)]) {
    if (sighting.damage || sighting.step != step || sighting.id != id) continue;
    if (best == nullptr || sighting.stage < best->stage) best = &sighting;
  }
  return best;
}

int Inventory::lowest(std::uint64_t step, std::uint64_t id) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (find(rank, step, id) != nullptr) return rank;
  }
  return -1;
}

int Inventory::lowest_with(std::uint64_t step, std::uint64_t id, std::size_t file) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    const Sighting* const sighting = find(rank, step, id);
    if (sighting != nullptr && sighting->present[file]) return rank;
  }
  return -1;
}

/// The ranks whose files nobody can have. A file that is gone from where it belongs is damage,
/// which open() reports; one whose whole disk has no such checkpoint only makes it incomplete.
std::string Inventory::missing_of(std::uint64_t step, std::uint64_t id) const {
  const Sighting& any = *find(lowest(step, id), step, id);
  const std::size_t shared = any.present.size() - static_cast<std::size_t>(any.workers);
  std::vector<std::size_t> missing;
  for (std::size_t file = shared; file < any.present.size(); ++file) {
    bool covered = false;
    for (int rank = 0; rank < ranks() && !covered; ++rank) {
      const Sighting* const sighting = find(rank, step, id);
      covered = sighting != nullptr && (sighting->present[file] || sighting->expected[file]);
    }
    if (!covered) missing.push_back(file - shared);
  }
  if (missing.empty()) return "";
  return fmt::format("no rank sees the files of old rank {}", fmt::join(missing, ", "));
}

bool Inventory::seen_by_all(std::uint64_t step, std::uint64_t id) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto& sightings = by_rank_[static_cast<std::size_t>(rank)];
    const bool any = std::any_of(sightings.begin(), sightings.end(), [&](const Sighting& sighting) {
      return sighting.step == step && sighting.stage != Stage::partial;
    });
    if (any && find(rank, step, id) == nullptr) return false;
  }
  return true;
}

std::optional<Error> Inventory::damage_of(std::uint64_t step) const {
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

Verdict Inventory::judge(std::uint64_t step) const {
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
