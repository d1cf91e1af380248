// What a rank sees in its folder, and how it tells the others.
#include <nlohmann/json.hpp>

#include "checkpoint/disk.h"
#include "checkpoint/manifest.h"
#include "checkpoint/survey.h"

namespace dgc::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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
    sighting.present += fs::is_regular_file(directory / manifest.files[i].name) ? '1' : '0';
    sighting.expected += i < manifest.shared_files() ? '1' : '0';
  }
  for (const int rank : manifest.ranks_here) sighting.expected[manifest.rank_file(rank)] = '1';
  for (const auto& entry : fs::directory_iterator(directory)) {
    const auto rank = parse_rank_file_name(entry.path().filename().string());
    if (rank && *rank >= manifest.workers) sighting.stray = entry.path().string();
  }
  return sighting;
}

}  // namespace

std::vector<Sighting> look(const fs::path& folder, std::optional<std::uint64_t> step) {
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

std::vector<Sighting> sightings_of(const json& value) {
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
      s.present = one.at("present");
      s.expected = one.at("expected");
      s.workers = one.at("workers");
      s.stray = one.at("stray");
    }
  }
  return sightings;
}

}  // namespace dgc::checkpoint
