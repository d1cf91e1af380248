#include "train/hub_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "train/run_folder.h"
#include "train/summary.h"

namespace dgc::train {
namespace {

using nlohmann::ordered_json;

template <typename Whole>
double real(Whole number) {
  return static_cast<double>(number);
}

}  // namespace

HubRecord::HubRecord(Options options, hub::Journal& journal, Console& console)
    : options_(std::move(options)), console_(console) {
  std::filesystem::create_directories(options_.folder);
  for (const auto& line : journal.commits(std::numeric_limits<std::size_t>::max())) {
    count(line);
    if (is_logged(line.round)) since_ = {};
  }
  for (const auto& note : journal.evaluations()) evaluation_ = note;
  log_.emplace(options_.folder / kMetricsFile, last_.round);
}

void HubRecord::set_model(const std::vector<TensorSpec>& model, std::int64_t positions) {
  if (!model_.empty()) return;
  model_ = model;
  parameters_ = real(hub::elements_of(model));
  positions_ = positions;
}

bool HubRecord::is_logged(std::uint64_t round) const {
  return round % static_cast<std::uint64_t>(options_.settings.log_every) == 0;
}

double HubRecord::epoch() const {
  return positions_ > 0 ? real(last_.examples) / real(positions_) : 0.0;
}

void HubRecord::count(const hub::CommitLine& line) {
  const double members = std::max(1.0, real(line.members));
  const double up = real(line.bytes_up - std::min(line.bytes_up, last_.bytes_up)) / members;
  const double down = real(line.bytes_down - std::min(line.bytes_down, last_.bytes_down)) / members;
  members_ += real(line.members);
  up_ += up;
  down_ += down;
  seconds_ += line.seconds;
  since_.loss += line.loss;
  since_.rounds += 1.0;
  since_.seconds += line.seconds;
  since_.examples += real(line.examples - last_.examples);
  last_ = line;
}

void HubRecord::committed(const hub::CommitLine& line) {
  const double up = up_;
  const double down = down_;
  count(line);
  const double loss = since_.loss / since_.rounds;
  const double rate = since_.seconds > 0.0 ? since_.examples / since_.seconds : 0.0;
  const double dense = 4.0 * parameters_;
  const std::string whole =
      options_.rounds > 0 ? fmt::format("/{}", options_.rounds) : std::string();
  console_.progress(fmt::format(
      "[{}] round {}{}  epoch {:.2f}  {} members  {:.0f} examples/s  {:.1f} rounds/min  loss "
      "{:.4f}  {} up, {} down a member",
      options_.mode, line.round, whole, epoch(), line.members, rate,
      since_.seconds > 0.0 ? 60.0 * since_.rounds / since_.seconds : 0.0, loss,
      bytes_text(up_ - up), bytes_text(down_ - down)));
  if (!is_logged(line.round)) return;
  log_->write(StepLine{.step = real(line.round),
                       .epoch = epoch(),
                       .seconds = seconds_,
                       .loss = loss,
                       .lr = line.lr,
                       .ratio = line.ratio,
                       .message_bytes = up_ - up,
                       .message_ratio = up_ > up ? dense / (up_ - up) : kUnknown,
                       .traffic_ratio = down_ > down ? dense / (down_ - down) : kUnknown,
                       .bytes_up = up_,
                       .bytes_down = down_,
                       .examples_per_second = rate});
  since_ = {};
}

void HubRecord::evaluated(const hub::EvaluationNote& note) {
  evaluation_ = note;
  log_->write(EvaluationLine{.step = real(note.round),
                             .epoch = epoch(),
                             .seconds = seconds_,
                             .bytes_up = up_,
                             .bytes_down = down_,
                             .loss = note.loss,
                             .metric = note.metric,
                             .metrics = note.metrics});
  console_.say(fmt::format("[{}] round {}  {:.1f} s  loss {:.4f}  {} {:.2f}  (by {})",
                           options_.mode, note.round, seconds_, note.loss,
                           note.metrics.front().first, note.metric, note.member));
}

Summary HubRecord::finish(bool finished, const std::string& hash) {
  const double rounds = std::max(1.0, real(last_.round));
  Result result;
  if (evaluation_) {
    result.metric = evaluation_->metric;
    result.metrics = evaluation_->metrics;
    result.validation_metric = evaluation_->metric;
    result.loss = evaluation_->loss;
  }
  result.metric_of = "validation";
  result.epochs = epoch();
  result.steps = real(last_.round);
  result.seconds = result.total_seconds = seconds_;
  result.bytes_up_per_step = result.message_bytes_per_step = up_ / rounds;
  result.bytes_down_per_step = down_ / rounds;
  result.wire_bytes_total = up_;
  const double dense = 4.0 * parameters_ * rounds;
  if (up_ > 0.0) result.message_ratio = result.message_ratio_total = dense / up_;
  if (down_ > 0.0) result.traffic_ratio = result.traffic_ratio_total = dense / down_;
  result.final_ratio = last_.ratio;
  result.parameters_hash = hash;
  result.finished = finished;
  Summary summary = summary_head(options_.settings);
  summary.finished = finished;
  summary.facts = {.model = options_.settings.model,
                   .parameters = parameters_,
                   .workers = std::round(members_ / rounds * 10.0) / 10.0,
                   .engine = "hub",
                   .batch = real(options_.settings.batch),
                   .steps_per_epoch = epoch() > 0.0 ? rounds / epoch() : kUnknown,
                   .examples_per_step = real(last_.examples) / rounds,
                   .example_name = "examples"};
  if (evaluation_) summary.facts.metric_name = evaluation_->metrics.front().first;
  summary.facts.higher_is_better = summary.facts.metric_name.find("accuracy") != std::string::npos;
  summary.modes.emplace_back(options_.mode, result);
  ordered_json tensors = ordered_json::array();
  for (const TensorSpec& spec : model_) {
    const double elements = real(spec.elements());
    tensors.push_back(to_json(TensorLine{
        .name = spec.name,
        .shape = spec.shape,
        .elements = elements,
        .mode = spec.dense ? "dense" : "sparse",
        .why = fmt::format("{} dimension{}", spec.shape.size(), spec.shape.size() == 1 ? "" : "s"),
        .k = spec.dense ? elements : std::ceil(last_.ratio * elements)}));
  }
  write_json(options_.folder / kTensorsFile, tensors);
  write_json(options_.folder / kResultFile,
             to_json(ModeResult{.result = result, .facts = summary.facts}));
  write_json(options_.folder.parent_path() / kSummaryFile, to_json(summary));
  return summary;
}

}  // namespace dgc::train
