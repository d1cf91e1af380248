#include "report/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <set>

#include "report/format.h"
#include "train/run_folder.h"
#include "train/settings.h"

namespace dgc::report {
namespace {

using Rows = std::vector<std::vector<std::string>>;

/// Of a difference: bits per byte differ in the third.
int digits_of(double metric) { return std::abs(metric) < 10.0 ? 3 : 2; }

/// "+0.12", or nothing for the baseline itself.
std::string difference_text(const Mode& mode, const Mode* other) {
  if (other == nullptr) return std::string(kNothing);
  const double difference = mode.result.metric - other->result.metric;
  if (!std::isfinite(difference)) return std::string(kNothing);
  return fmt::format("{:+.{}f}", difference, digits_of(other->result.metric));
}

/// "0.12 points below dense", "level with dense".
std::string difference_words(const Run& run, double difference, int digits) {
  const std::string amount = fmt::format("{:.{}f}", std::abs(difference), digits);
  if (amount.find_first_not_of("0.") == std::string::npos) return "level with dense";
  return fmt::format("{}{} {} dense{}", amount,
                     run.summary.facts.metric_unit == "%" ? " points" : "",
                     difference < 0.0 ? "below" : "above",
                     run.summary.facts.higher_is_better ? "" : " (lower is better)");
}

std::string value_of_metric(const Run& run, double metric) {
  const std::string number = metric_text(metric);
  if (run.summary.facts.metric_unit == "%")
    return fmt::format("{} % {}", number, run.summary.facts.metric_name);
  return fmt::format("{} {}{}{}", run.summary.facts.metric_name, number,
                     run.summary.facts.metric_unit.empty() ? "" : " ",
                     run.summary.facts.metric_unit);
}

std::string ending(const Run& run, const Mode& mode, const Mode* dense) {
  const train::Result& result = mode.result;
  const char* const verb = result.finished ? "ended" : "is";
  if (!std::isfinite(result.metric)) return "has not been evaluated";
  if (dense == nullptr || !std::isfinite(dense->result.metric)) {
    return fmt::format("{} at {}", verb, value_of_metric(run, result.metric));
  }
  const std::string words =
      difference_words(run, result.metric - dense->result.metric, digits_of(dense->result.metric));
  // Points speak for themselves; other differences need something to compare with.
  if (run.summary.facts.metric_unit == "%") return fmt::format("{} {}", verb, words);
  return fmt::format("{} at {}, {}", verb, value_of_metric(run, result.metric), words);
}

std::string sentence(const Run& run, const Mode& mode, const Mode* dense) {
  const train::Result& result = mode.result;
  const std::string so_far = result.finished ? "" : "not finished: ";
  const std::string whole = ratio_text(result.message_ratio_total);
  std::string sizes;
  if (train::is_local(mode.name) && std::isfinite(result.traffic_ratio_total)) {
    sizes = fmt::format("received {} times fewer bytes than dense gradients in every step",
                        ratio_text(result.traffic_ratio_total));
  } else if (std::isfinite(result.message_ratio)) {
    sizes = fmt::format("sent {} times smaller messages than {}", ratio_text(result.message_ratio),
                        dense == nullptr ? "plain fp32 gradients" : "dense");
    if (std::isfinite(result.message_ratio_total) && whole != ratio_text(result.message_ratio)) {
      sizes += fmt::format(" once warmed up ({} times over the whole run)", whole);
    }
  } else if (std::isfinite(result.message_ratio_total)) {
    sizes = fmt::format("sent {} times smaller messages than {}, warm-up included", whole,
                        dense == nullptr ? "plain fp32 gradients" : "dense");
  }
  const std::string end = ending(run, mode, dense);
  return fmt::format("{}{} {}{}{}.", so_far, mode.name, sizes, sizes.empty() ? "" : ", and ", end);
}

}  // namespace

std::vector<std::string> run_names(std::span<const Run> runs) {
  std::vector<std::string> names;
  for (const Run& run : runs) {
    std::size_t same = 0;
    for (const Run& other : runs) same += other.name == run.name;
    const auto above = std::filesystem::absolute(run.folder).lexically_normal();
    const auto parent = (above.has_filename() ? above : above.parent_path()).parent_path();
    names.push_back(same > 1 ? (parent.filename() / run.name).string() : run.name);
  }
  // Still the same: where they are, or, the same folder twice, which one.
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (names[i] == names[j]) names[i] = fmt::format("{} ({})", runs[i].folder.string(), i + 1);
    }
  }
  for (std::string& name : names) name = train::valid_utf8(name);
  return names;
}

namespace {

bool same_training(const nlohmann::json& a, const nlohmann::json& b) {
  static constexpr const char* kOf[] = {"recipe", "model", "examples", "epochs",  "steps",
                                        "batch",  "bptt",  "seed",     "workers", "hidden"};
  if (!a.is_object() || !b.is_object()) return false;
  return std::all_of(std::begin(kOf), std::end(kOf), [&](const char* name) {
    return a.value(name, nlohmann::json()) == b.value(name, nlohmann::json());
  });
}

}  // namespace

const Mode* baseline(std::span<const Run> runs, std::size_t run, const Mode& mode) {
  if (mode.name == "dense") return nullptr;
  if (runs[run].dense() != nullptr) return runs[run].dense();
  // Of another run with the same task, length and seed; rates may have been tuned for each.
  for (const Run& other : runs) {
    if (other.dense() != nullptr &&
        other.summary.facts.metric_name == runs[run].summary.facts.metric_name &&
        same_training(other.config, runs[run].config)) {
      return other.dense();
    }
  }
  return nullptr;
}

Rows comparison_rows(std::span<const Run> runs) {
  bool same_metric = true;
  for (const Run& run : runs)
    same_metric &= run.summary.facts.metric_name == runs[0].summary.facts.metric_name;
  std::string metric = "metric";
  if (same_metric && !runs.empty()) {
    metric = runs[0].summary.facts.metric_name;
    if (!runs[0].summary.facts.metric_unit.empty())
      metric += ", " + runs[0].summary.facts.metric_unit;
  }
  Rows rows = {{"mode", metric, "vs dense", "epochs", "time", "waiting", "sent per step",
                "message ratio", "with warm-up", "traffic ratio"}};
  if (runs.size() > 1) rows[0].insert(rows[0].begin(), "run");
  const auto names = run_names(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Mode& mode : runs[i].modes) {
      const train::Result& result = mode.result;
      auto& row = rows.emplace_back();
      if (runs.size() > 1) row.push_back(names[i]);
      std::string value = metric_text(result.metric);
      if (!same_metric) value = fmt::format("{} ({})", value, runs[i].summary.facts.metric_name);
      for (std::string cell :
           {train::valid_utf8(mode.name), value, difference_text(mode, baseline(runs, i, mode)),
            epochs_text(result.epochs), seconds_text(result.seconds),
            percent_text(result.waiting_share), bytes_text(result.bytes_up_per_step),
            ratio_text(result.message_ratio), ratio_text(result.message_ratio_total),
            ratio_text(result.traffic_ratio)}) {
        row.push_back(std::move(cell));
      }
    }
  }
  return rows;
}

Rows comparison_rows(const Run& run) { return comparison_rows(std::span(&run, 1)); }

namespace {

/// What a step took where a network was emulated: then that is what the run was made for.
std::optional<std::string> link_sentence(const Run& run) {
  constexpr const char* kOption = "emulate-link";
  if (!run.config.is_object() || !run.config.contains(kOption)) return std::nullopt;
  const std::string link = value_text(run.config[kOption]);
  std::vector<std::string> parts;
  for (const Mode& mode : run.modes) {
    const train::Result& result = mode.result;
    if (!result.time || !(result.steps > 0.0)) continue;
    parts.push_back(fmt::format("{:.0f} ms with {}", 1e3 * result.time->training() / result.steps,
                                train::valid_utf8(mode.name)));
  }
  if (link.empty() || parts.empty()) return std::nullopt;
  return fmt::format("Over an emulated link of {} a step took {}.", link, fmt::join(parts, ", "));
}

}  // namespace

std::vector<std::string> comparison_sentences(const Run& run) {
  const Mode* const dense = run.dense();
  std::vector<std::string> sentences;
  for (const Mode& mode : run.modes) {
    if (&mode == dense) continue;
    const bool ours = mode.name == "dgc" || mode.name == "dgc-local";
    const auto place = ours ? sentences.begin() : sentences.end();
    sentences.insert(place, train::valid_utf8(sentence(run, mode, dense)));
  }
  if (sentences.empty() && dense != nullptr) {
    sentences.push_back(
        fmt::format("{}dense {} after {} epochs.", dense->result.finished ? "" : "not finished: ",
                    ending(run, *dense, nullptr), epochs_text(dense->result.epochs)));
  }
  if (auto link = link_sentence(run)) {
    // A few steps say nothing about accuracy.
    if (dense != nullptr && dense->result.epochs < 1.0) sentences.clear();
    sentences.insert(sentences.begin(), std::move(*link));
  }
  return sentences;
}

std::string comparison_words(const Run& run) {
  return fmt::format("{}", fmt::join(comparison_sentences(run), " "));
}

std::string value_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Rows configuration_differences(std::span<const Run> runs) {
  Rows rows = {{"setting"}};
  std::set<std::string> keys;
  for (const std::string& name : run_names(runs)) rows[0].push_back(name);
  for (const Run& run : runs) {
    if (!run.config.is_object()) continue;
    for (const auto& [key, value] : run.config.items()) keys.insert(key);
  }
  for (const std::string& key : keys) {
    std::vector<std::string> row = {key};
    bool differs = false;
    for (const Run& run : runs) {
      const bool has = run.config.is_object() && run.config.contains(key);
      row.push_back(has ? value_text(run.config[key]) : std::string(kNothing));
      differs |= row.back() != row[1];
    }
    if (differs) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace dgc::report
