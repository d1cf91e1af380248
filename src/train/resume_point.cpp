#include "train/resume_point.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "dgc/error.h"

namespace dgc::train {
namespace {

using nlohmann::ordered_json;

/// JSON has no NaN.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}
double number(const ordered_json& json) { return json.is_number() ? json.get<double>() : kUnknown; }

}  // namespace

std::string ResumePoint::text() const {
  ordered_json json = {{"epoch", epoch},
                       {"position", position},
                       {"positions", positions},
                       {"done", done},
                       {"steps", steps},
                       {"problems", skipped_files},
                       {"lr", {{"factor", lr.factor}, {"best", number(lr.best)}, {"any", lr.any}}},
                       {"totals", to_json(totals)}};
  if (best_metric) json["best"] = number(*best_metric);
  if (validation) {
    ordered_json metrics = ordered_json::array();
    for (const auto& [name, value] : validation->metrics) metrics.push_back({name, number(value)});
    json["valid"] = {{"loss", number(validation->loss)}, {"metrics", metrics}};
  }
  return json.dump();
}

ResumePoint ResumePoint::from(const std::string& text) {
  try {
    const auto json = ordered_json::parse(text);
    ResumePoint point;
    json.at("epoch").get_to(point.epoch);
    json.at("position").get_to(point.position);
    json.at("positions").get_to(point.positions);
    point.done = json.value("done", std::uint64_t{0});  // since version 0.3
    json.at("steps").get_to(point.steps);
    json.at("problems").get_to(point.skipped_files);
    const auto& lr = json.at("lr");
    point.lr = {lr.at("factor"), number(lr.at("best")), lr.at("any")};
    point.totals = totals_from(json.at("totals"));
    if (json.contains("best")) point.best_metric = number(json.at("best"));
    if (json.contains("valid")) {
      point.validation = Scores{number(json.at("valid").at("loss")), {}};
      for (const auto& pair : json.at("valid").at("metrics")) {
        point.validation->metrics.emplace_back(pair.at(0), number(pair.at(1)));
      }
    }
    return point;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::bad_state, "resume", "user data of the checkpoint", error.what(),
                "`dgc train --resume` continues checkpoints that `dgc train` saved");
  }
}

}  // namespace dgc::train
