#include "train/totals.h"

#include <nlohmann/json.hpp>

namespace dgc::train {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Sent, steps, message_bytes, bytes_up, bytes_down, dense_bytes,
                                   ring_bytes)

namespace {

struct NamedTime {
  const char* name;
  double Times::*member;
};
constexpr NamedTime kTimes[] = {
    {"data", &Times::data},   {"compute", &Times::compute},   {"waiting", &Times::waiting},
    {"apply", &Times::apply}, {"evaluate", &Times::evaluate}, {"checkpoint", &Times::checkpoint},
    {"other", &Times::other}, {"compress", &Times::compress}, {"exchange", &Times::exchange},
};

}  // namespace

nlohmann::ordered_json to_json(const Times& times) {
  nlohmann::ordered_json json;
  for (const auto& [name, member] : kTimes) json[name] = times.*member;
  return json;
}

nlohmann::json to_json(const Totals& totals) {
  return {{"times", to_json(totals.times)}, {"all", totals.all}, {"steady", totals.steady}};
}

Totals totals_from(const nlohmann::json& json) {
  Totals totals;
  for (const auto& [name, member] : kTimes) json.at("times").at(name).get_to(totals.times.*member);
  json.at("all").get_to(totals.all);
  json.at("steady").get_to(totals.steady);
  return totals;
}

}  // namespace dgc::train
