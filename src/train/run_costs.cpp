#include "train/run_costs.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "dgc/error.h"
#include "train/across_ranks.h"
#include "train/run_folder.h"

namespace dgc::train {
namespace {

using nlohmann::ordered_json;

constexpr const char* kCostsFile = "costs.json";

constexpr std::pair<const char*, double Costs::*> kWork[] = {
    {"select", &Costs::select},   {"encode", &Costs::encode}, {"entry", &Costs::entry},
    {"place", &Costs::place},     {"slice", &Costs::slice},   {"dense", &Costs::dense},
    {"dense16", &Costs::dense16}, {"byte", &Costs::byte},     {"message", &Costs::message},
    {"round", &Costs::round}};

Costs costs_from(const ordered_json& json) {
  Costs costs;
  costs.link.bytes_per_second = json.at("bytes_per_second").get<double>();
  costs.link.delay = std::chrono::duration<double>(json.at("delay").get<double>());
  for (const auto& [name, member] : kWork) costs.*member = json.at(name).get<double>();
  costs.measured = json.at("measured").get<bool>();
  return costs;
}

}  // namespace

ordered_json to_json(const Costs& costs) {
  ordered_json json = {{"measured", costs.measured},
                       {"bytes_per_second", costs.link.bytes_per_second},
                       {"delay", costs.link.delay.count()}};
  for (const auto& [name, member] : kWork) json[name] = costs.*member;
  return json;
}

void keep_costs(const Group& group, const std::filesystem::path& folder, const Costs& costs) {
  if (group.rank() != 0) return;
  ordered_json json = to_json(costs);
  json["workers"] = group.size();
  write_json(folder / kCostsFile, json);
}

std::optional<Costs> kept_costs(Group& group, const std::filesystem::path& folder) {
  std::string mine;
  if (group.rank() == 0) {
    if (const auto file = read_json(folder / kCostsFile)) mine = file->dump();
  }
  const std::string text = gathered(group, mine).front();
  if (text.empty()) return std::nullopt;
  try {
    const ordered_json json = ordered_json::parse(text);
    if (json.at("workers").get<int>() != group.size()) return std::nullopt;
    return costs_from(json);
  } catch (const ordered_json::exception& error) {
    throw Error(ErrorCode::bad_state, "resume", (folder / kCostsFile).string(), error.what(),
                "remove the file: the link is then measured anew");
  }
}

}  // namespace dgc::train
