#include "plan/costs_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "base/nearest.h"
#include "dgc/error.h"

namespace dgc::plan {

void read_costs(const std::filesystem::path& path, Scenario& setup) {
  const auto refuse = [&](const std::string& problem, const std::string& hint) {
    throw Error(ErrorCode::invalid_argument, "plan", fmt::format("--costs {}", path.string()),
                problem, hint);
  };
  const MappedFile file(path);
  const auto* const begin = reinterpret_cast<const char*>(file.contents().data());
  const auto costs = nlohmann::json::parse(begin, begin + file.contents().size(), nullptr, false);
  if (!costs.is_object()) refuse("is not a JSON object", R"(as {"select": 0.9e-9})");
  Costs& c = setup.costs;
  const std::map<std::string, double*> known = {
      {"select", &c.select},   {"encode", &c.encode},      {"entry", &c.entry},
      {"place", &c.place},     {"slice", &c.slice},        {"dense", &c.dense},
      {"dense16", &c.dense16}, {"byte", &c.byte},          {"message", &c.message},
      {"round", &c.round},     {"payload", &setup.payload}};
  std::vector<std::string> names;
  for (const auto& [name, place] : known) names.push_back(name);
  for (const auto& [name, value] : costs.items()) {
    const auto found = known.find(name);
    if (found == known.end()) {
      refuse(fmt::format("'{}' is no constant", name),
             fmt::format("{}known: {}", did_you_mean(name, names), fmt::join(names, ", ")));
    }
    if (!value.is_number() || value.get<double>() < 0.0 ||
        (name == "payload" && (value.get<double>() == 0.0 || value.get<double>() > 1.0))) {
      refuse(fmt::format("'{}' is {}", name, value.dump()),
             name == "payload" ? "a share between 0 and 1" : "seconds, 0 or more");
    }
    *found->second = value.get<double>();
  }
}

}  // namespace dgc::plan
