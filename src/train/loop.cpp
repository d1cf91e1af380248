#include "train/loop.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <xxhash.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "dgc/checkpoint.h"
#include "train/lr_schedule.h"
#include "train/optimizer.h"
#include "train/prefetch.h"
#include "train/run_folder.h"
#include "train/task.h"
#include "train/together.h"
#include "train/totals.h"

namespace dgc::train {
namespace {

using nlohmann::ordered_json;

class Stopwatch {
 public:
  /// Seconds since the last call, or since construction.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// An even share of the cores for each of the workers of this machine.
int threads_of_worker(Group& group, std::int64_t asked) {
  int here = 0;
  for (const std::string& host : gathered(group, group.host())) here += host == group.host();
  if (asked > 0) return static_cast<int>(asked);
  return std::max(1, ::get_nprocs() / std::max(1, here));
}

std::string hash_of(const torch::nn::Module& model) {
  std::uint64_t hash = 0;
  for (const auto& p : model.parameters()) {
    const torch::Tensor values = p.detach().contiguous();
    hash = XXH64(values.data_ptr(), values.nbytes(), hash);
  }
  return fmt::format("{:016x}", hash);
}

/// Numbers that a report can show as gaps.
ordered_json finite(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

class Loop {
 public:
  Loop(Group& group, const Job& job, Console& console)
      : group_(group),
        job_(job),
        settings_(job.settings),
        console_(console),
        first_(group.rank() == 0),
        threads_(threads_of_worker(group, settings_.threads)),
        schedule_(LrSchedule::parse(settings_.lr_schedule)) {
    torch::set_num_threads(threads_);
    task_ = make_task(settings_, {group.rank(), group.size()});
    compare_data();
    const auto positions = static_cast<double>(task_->positions());
    steps_per_epoch_ = static_cast<std::uint64_t>(
        std::ceil(positions / static_cast<double>(task_->positions_of_step())));
    steps_ = settings_.steps > 0 ? static_cast<std::uint64_t>(settings_.steps)
                                 : steps_in(settings_.epochs);
    epochs_ = static_cast<double>(steps_) / static_cast<double>(steps_per_epoch_);
    sgd_ = std::make_unique<Sgd>(
        group, task_->model(),
        optimizer_options(settings_, job.mode, static_cast<std::int64_t>(steps_per_epoch_)));
    // Dropout differs between workers, and the same run has the same dropout.
    torch::manual_seed(static_cast<std::uint64_t>(settings_.seed) * 1'000'003u +
                       static_cast<std::uint64_t>(group.rank()) + 1);
    final_ratio_ = sgd_->options().schedule().ratio_at(std::numeric_limits<std::int64_t>::max());
  }

  /// The others would wait for this rank until their deadline, and not know why.
  void give_up(const Error& cause) noexcept { sgd_->abandon(cause); }

  Outcome run() {
    if (first_) std::filesystem::create_directories(job_.folder);
    resume();
    if (first_) log_.emplace(job_.folder / kMetricsFile, sgd_->steps());
    announce();
    bool stopped = false;
    {
      Prefetcher batches(*task_, cursor_, static_cast<int>(settings_.loaders));
      clock_.lap();
      while (sgd_->steps() < steps_ && !stopped) {
        const bool epoch_ended = step(batches);
        const bool last = sgd_->steps() == steps_;
        if (last || sgd_->stop_requested()) sgd_->check_parameters();
        if (epoch_ended || last) evaluate();
        stopped = sgd_->stop_requested() && !last;
        const auto every = static_cast<std::uint64_t>(settings_.checkpoint_every);
        if (epoch_ended || last || stopped || (every != 0 && sgd_->steps() % every == 0)) save();
      }
    }
    // Before anything else can go wrong: a continuation that has no step to do could not tell.
    if (first_ && did_steps_) write_json(job_.folder / kTensorsFile, tensors());
    if (!stopped && task_->has_test()) {
      clock_.lap();
      test_ = scores_of(Split::test);
      report_problems();
      totals_.times.evaluate += clock_.lap();
    }
    return outcome(stopped);
  }

 private:
  /// 0.07 epochs of 100 steps are 7, whatever floating point makes of it.
  std::uint64_t steps_in(double epochs) const {
    return static_cast<std::uint64_t>(
        std::ceil(epochs * static_cast<double>(steps_per_epoch_) - 1e-6));
  }

  /// Ranks that have other data would evaluate at other steps, and wait for each other.
  void compare_data() {
    const std::string mine = std::to_string(task_->positions());
    const std::vector<std::string> all = gathered(group_, mine);
    if (all.front() == mine) return;
    throw Error(ErrorCode::configuration_mismatch, "train", fmt::format("rank {}", group_.rank()),
                fmt::format("has {} examples where rank 0 has {}", mine, all.front()),
                "give all workers the same data");
  }

  double epoch() const {
    return static_cast<double>(cursor_.epoch) +
           static_cast<double>(cursor_.position) / static_cast<double>(task_->positions());
  }

  /// True when it was the last of its epoch.
  bool step(Prefetcher& batches) {
    Prefetcher::Item item = batches.next();
    totals_.times.data += clock_.lap();
    if (item.draw.first == 0) task_->begin_epoch();
    const double factor = schedule_.factor(epoch(), epochs_, settings_.lr_warmup);
    for (auto& g : sgd_->param_groups()) g.options().set_lr(settings_.lr * factor);
    sgd_->zero_grad();
    if (item.batch.examples > 0) {
      torch::Tensor loss = task_->loss(item.batch);
      loss_ += loss.item<double>() * item.batch.weight;
      if (item.batch.weight != 1.0) loss = loss * item.batch.weight;
      loss.backward();
    }
    ++losses_;
    read_ += static_cast<double>(item.batch.examples);
    totals_.times.compute += clock_.lap();
    if (job_.stop != nullptr && *job_.stop != 0) sgd_->request_stop();
    sgd_->step();
    cursor_.next(*task_);
    count(item.draw);
    const bool ended = cursor_.position == 0;
    if (ended || sgd_->steps() % static_cast<std::uint64_t>(settings_.log_every) == 0 ||
        sgd_->steps() == steps_) {
      log_step();
    }
    totals_.times.other += clock_.lap();
    return ended;
  }

  void count(const Draw& draw) {
    const StepStats& stats = sgd_->stats();
    totals_.times.waiting += stats.waiting;
    totals_.times.apply += stats.apply;
    totals_.times.compress += stats.compress + stats.encode;
    totals_.times.exchange += stats.exchange;
    totals_.times.other += clock_.lap() - stats.waiting - stats.apply;
    examples_ += task_->examples_in(draw.count);
    drawn_ += draw.count;
    did_steps_ = true;
    const auto add = [&](Sent& sent) {
      ++sent.steps;
      sent.message_bytes += stats.message_bytes;
      sent.dense_bytes += stats.message_ratio * static_cast<double>(stats.message_bytes);
      sent.ring_bytes += stats.traffic_ratio * static_cast<double>(stats.bytes_down);
      sent.bytes_up += stats.bytes_up;
      sent.bytes_down += stats.bytes_down;
    };
    add(totals_.all);
    if (stats.ratio <= final_ratio_) add(totals_.steady);
  }

  /// Of the steps since the last line.
  void log_step() {
    const std::vector<double> sums =
        summed(group_, {loss_ / static_cast<double>(std::max<std::int64_t>(losses_, 1)), read_});
    const double loss = sums[0] / group_.size();
    loss_ = read_ = 0.0;
    losses_ = 0;
    if (sums[1] > 0.0) drawn_ = 0;
    // A file may be damaged; that a whole batch is means that there are no data any more.
    if (drawn_ >= task_->positions_of_step()) {
      report_problems();
      throw Error(ErrorCode::io, "train", fmt::format("step {}", sgd_->steps()),
                  "none of the last examples could be read",
                  "are the data still there? The last checkpoint is good: --resume");
    }
    if (!std::isfinite(loss)) {
      throw Error(ErrorCode::nonfinite_gradient, "train", fmt::format("step {}", sgd_->steps()),
                  fmt::format("the loss is {}", loss), "try a lower --lr or --lr-warmup");
    }
    const Times& now = totals_.times;
    const double seconds = now.training() - logged_.training();
    const double rate = seconds > 0.0 ? static_cast<double>(examples_) / seconds : 0.0;
    examples_ = 0;
    const StepStats& stats = sgd_->stats();
    if (first_) {
      log_->write({{"type", "step"},
                   {"step", sgd_->steps()},
                   {"epoch", epoch()},
                   {"seconds", now.training()},
                   {"loss", loss},
                   {"lr", sgd_->param_groups()[0].options().get_lr()},
                   {"ratio", stats.ratio},
                   {"achieved_ratio", stats.ratio < 1.0 ? stats.achieved_ratio : 1.0},
                   {"message_bytes", stats.message_bytes},
                   {"message_ratio", stats.message_ratio},
                   {"traffic_ratio", stats.traffic_ratio},
                   {"bytes_up", totals_.all.bytes_up},
                   {"bytes_down", totals_.all.bytes_down},
                   {"gradient_norm", finite(stats.gradient_norm)},
                   {"residual_norm", finite(stats.residual_norm)},
                   {"threshold", stats.threshold},
                   {"clip_factor", stats.clip_factor},
                   {"examples_per_second", rate},
                   {"time",
                    {{"data", now.data - logged_.data},
                     {"compute", now.compute - logged_.compute},
                     {"waiting", now.waiting - logged_.waiting},
                     {"apply", now.apply - logged_.apply}}}});
    }
    const double per_step = now.training() / static_cast<double>(totals_.all.steps);
    console_.progress(
        {.mode = job_.mode,
         .step = sgd_->steps(),
         .steps = steps_,
         .epoch = epoch(),
         .epochs = epochs_,
         .examples_per_second = rate,
         .seconds_left = per_step * static_cast<double>(steps_ - sgd_->steps()),
         .loss = loss,
         .metric = metric_text(),
         .bytes_per_step = static_cast<double>(stats.bytes_up),
         .message_ratio = stats.message_ratio,
         .waiting_share = seconds > 0.0 ? (now.waiting - logged_.waiting) / seconds : 0.0});
    logged_ = now;
  }

  std::string metric_text() const {
    if (!valid_) return {};
    const MetricInfo info = task_->metric();
    return fmt::format("{} {:.2f}{}", info.name, valid_->metrics[0].second,
                       info.unit.empty() ? "" : " " + info.unit);
  }

  Scores scores_of(Split split) {
    const Patience patience(group_);
    return task_->scores(summed(group_, task_->evaluate(split)));
  }

  void evaluate() {
    clock_.lap();
    {
      const Patience patience(group_);
      // Statistics of batch normalisation are each worker's own until now.
      sgd_->sync_buffers();
    }
    valid_ = scores_of(Split::valid);
    schedule_.evaluated(valid_->loss);
    const double metric = valid_->metrics[0].second;
    const bool better =
        !best_ || (task_->metric().higher_is_better ? metric > *best_ : metric < *best_);
    if (better) best_ = metric;
    report_problems();
    totals_.times.evaluate += clock_.lap();
    if (!first_) return;
    ordered_json metrics;
    for (const auto& [name, value] : valid_->metrics) metrics[name] = finite(value);
    log_->write({{"type", "evaluation"},
                 {"step", sgd_->steps()},
                 {"epoch", epoch()},
                 {"seconds", totals_.times.training()},
                 {"bytes_up", totals_.all.bytes_up},
                 {"bytes_down", totals_.all.bytes_down},
                 {"loss", finite(valid_->loss)},
                 {"metric", finite(metric)},
                 {"metrics", metrics}});
    console_.say(
        fmt::format("[{}] epoch {:.4g}/{:.4g}  step {}  {:.1f} s  loss {:.4f}  {}  sent {:.2f} MB",
                    job_.mode, epoch(), epochs_, sgd_->steps(), totals_.times.training(),
                    valid_->loss, metric_text(), static_cast<double>(totals_.all.bytes_up) / 1e6));
  }

  /// Files that were skipped for the first time, on any rank. (Loaders run ahead, and the same file
  /// comes again in each epoch.)
  void report_problems() {
    const std::vector<std::string> mine = task_->problems().take();
    std::size_t count = 0;
    std::string example;
    for (const std::string& theirs : gathered(group_, fmt::format("{}", fmt::join(mine, "\n")))) {
      std::istringstream lines(theirs);
      for (std::string line; std::getline(lines, line);) {
        line = valid_utf8(line);
        if (!problems_.insert(line).second) continue;
        ++count;
        if (example.empty()) example = line;
      }
    }
    if (count > 0) {
      console_.say(fmt::format("warning: {} could not be read and {} skipped: {}{}",
                               count == 1 ? "a file" : fmt::format("{} files", count),
                               count == 1 ? "was" : "were", example,
                               count == 1 ? "" : " is the first"));
    }
  }

  void save() {
    clock_.lap();
    const Patience patience(group_);
    const LrSchedule::State& lr = schedule_.state();
    ordered_json user = {
        {"epoch", cursor_.epoch},
        {"position", cursor_.position},
        {"positions", task_->positions()},
        {"steps", steps_},
        {"problems", problems_},
        {"lr", {{"factor", lr.factor}, {"best", finite(lr.best)}, {"any", lr.any}}},
        {"totals", to_json(totals_)}};
    if (best_) user["best"] = finite(*best_);
    if (valid_) {
      user["valid"] = {{"loss", finite(valid_->loss)}, {"metrics", ordered_json::array()}};
      for (const auto& [name, value] : valid_->metrics) {
        user["valid"]["metrics"].push_back({name, finite(value)});
      }
    }
    save_checkpoint(job_.folder / kCheckpoints, *sgd_, user.dump(),
                    static_cast<int>(settings_.keep), task_->carried());
    totals_.times.checkpoint += clock_.lap();
  }

  void resume() {
    if (!job_.resume) return;
    const Patience patience(group_);
    const auto info = load_checkpoint(job_.folder / kCheckpoints, *sgd_);
    if (!info) return;
    const auto user = ordered_json::parse(info->user);
    const auto number = [](const ordered_json& value) {
      return value.is_number() ? value.get<double>() : std::nan("");
    };
    cursor_ = {user.at("epoch"), user.at("position")};
    // Text has other rows with another number of workers: the nearest place in it.
    if (const std::int64_t before = user.at("positions"); before != task_->positions()) {
      cursor_.position = cursor_.position * task_->positions() / before;
    }
    problems_ = user.at("problems").get<std::set<std::string>>();
    // The end of the run: as many steps as before, or with other batches as many epochs.
    if (info->workers == group_.size()) {
      steps_ = user.at("steps");
    } else if (settings_.steps == 0) {
      const double left = std::max(0.0, settings_.epochs - epoch());
      steps_ = info->step + steps_in(left);
    }
    const auto& lr = user.at("lr");
    schedule_.set_state({lr.at("factor"), number(lr.at("best")), lr.at("any")});
    totals_ = totals_from(user.at("totals"));
    logged_ = totals_.times;
    if (user.contains("best")) best_ = number(user.at("best"));
    if (user.contains("valid")) {
      valid_ = Scores{number(user.at("valid").at("loss")), {}};
      for (const auto& pair : user.at("valid").at("metrics")) {
        valid_->metrics.emplace_back(pair.at(0), number(pair.at(1)));
      }
    }
    task_->carry(info->mine);
    console_.say(fmt::format("[{}] continues after step {} of {}", job_.mode, info->step, steps_));
  }

  void announce() {
    const SgdReport report = sgd_->report();
    std::string text = fmt::format("[{}] {} of {} parameters sparse, overlap {}", job_.mode,
                                   report.sparse_parameters, report.parameters, report.overlap);
    if (job_.mode == "dense" || job_.mode == "dense-fp16") {
      text = fmt::format("[{}] all of {} parameters are sent", job_.mode, report.parameters);
    }
    for (const std::string& fact : task_->facts()) console_.say(fact);
    console_.say(text);
  }

  ordered_json tensors() const {
    ordered_json all = ordered_json::array();
    for (const auto& tensor : sgd_->report().tensors) {
      all.push_back({{"name", tensor.name},
                     {"shape", tensor.shape},
                     {"elements", tensor.elements},
                     {"mode", tensor.mode},
                     {"why", tensor.why},
                     {"k", tensor.k},
                     {"bytes", tensor.bytes}});
    }
    return all;
  }

  Outcome outcome(bool stopped) {
    const MetricInfo info = task_->metric();
    const SgdReport report = sgd_->report();
    Outcome outcome;
    outcome.stopped = stopped;
    outcome.common = {{"model", settings_.model},
                      {"parameters", report.parameters},
                      {"workers", group_.size()},
                      {"engine", group_.engine()},
                      {"threads_per_worker", threads_},
                      {"batch", batch_of_worker(settings_, {0, group_.size()}) * group_.size()},
                      {"metric_name", info.name},
                      {"metric_unit", info.unit},
                      {"higher_is_better", info.higher_is_better},
                      {"steps_per_epoch", steps_per_epoch_}};
    const Scores& scores = test_ ? *test_ : valid_ ? *valid_ : empty_;
    ordered_json metrics = ordered_json::object();
    for (const auto& [name, value] : scores.metrics) metrics[name] = finite(value);
    const auto per_step = [](std::uint64_t bytes, const Sent& sent) {
      return static_cast<double>(bytes) /
             static_cast<double>(std::max<std::uint64_t>(1, sent.steps));
    };
    const auto ratio = [](double dense, std::uint64_t bytes) {
      return bytes > 0 ? ordered_json(dense / static_cast<double>(bytes)) : ordered_json();
    };
    const auto message_ratio = [&](const Sent& sent) {
      return ratio(sent.dense_bytes, sent.message_bytes);
    };
    const auto traffic_ratio = [&](const Sent& sent) {
      return ratio(sent.ring_bytes, sent.bytes_down);
    };
    const Sent& steady = totals_.steady.steps > 0 ? totals_.steady : totals_.all;
    outcome.result = {
        {"metric", scores.metrics.empty() ? ordered_json() : finite(scores.metrics[0].second)},
        {"metrics", metrics},
        {"metric_of", test_ || !task_->has_test() ? "test" : "validation"},
        {"validation_metric", valid_ ? finite(valid_->metrics[0].second) : ordered_json()},
        {"best_metric", best_ ? finite(*best_) : ordered_json()},
        {"loss", finite(scores.loss)},
        {"epochs", epoch()},
        {"steps", sgd_->steps()},
        {"seconds", totals_.times.training()},
        {"total_seconds", totals_.times.total()},
        {"wire_bytes_per_step", per_step(steady.bytes_up, steady)},
        {"bytes_up_per_step", per_step(steady.bytes_up, steady)},
        {"bytes_down_per_step", per_step(steady.bytes_down, steady)},
        {"message_bytes_per_step", per_step(steady.message_bytes, steady)},
        {"wire_bytes_total", totals_.all.bytes_up},
        {"message_ratio", message_ratio(steady)},
        {"traffic_ratio", traffic_ratio(steady)},
        {"message_ratio_total", message_ratio(totals_.all)},
        {"traffic_ratio_total", traffic_ratio(totals_.all)},
        {"final_ratio", final_ratio_},
        {"steps_at_final_ratio", totals_.steady.steps},
        {"time", to_json(totals_.times)},
        {"data_share", totals_.times.data / std::max(1e-9, totals_.times.training())},
        {"waiting_share", totals_.times.waiting / std::max(1e-9, totals_.times.training())},
        {"skipped_files", problems_.size()},
        {"parameters_hash", hash_of(task_->model())},
        {"finished", !stopped}};
    if (first_) {
      write_json(job_.folder / kResultFile,
                 {{"result", outcome.result}, {"common", outcome.common}});
    }
    return outcome;
  }

  Group& group_;
  const Job& job_;
  const Settings& settings_;
  Console& console_;
  const bool first_;  // rank 0, which writes the files
  int threads_;
  LrSchedule schedule_;
  std::unique_ptr<Task> task_;
  std::unique_ptr<Sgd> sgd_;
  std::uint64_t steps_per_epoch_ = 0, steps_ = 0;
  double epochs_ = 0.0;
  double final_ratio_ = 1.0;

  Cursor cursor_;
  Stopwatch clock_;
  Totals totals_;
  Times logged_;  // totals at the last line
  double loss_ = 0.0;
  double read_ = 0.0;  // examples of this rank since the last line
  std::int64_t losses_ = 0, examples_ = 0;
  std::int64_t drawn_ = 0;  // positions since any rank could read one
  bool did_steps_ = false;

  std::set<std::string> problems_;
  std::optional<Scores> valid_, test_;
  std::optional<double> best_;
  Scores empty_;
  std::optional<MetricsLog> log_;
};

}  // namespace

Outcome train(Group& group, const Job& job, Console& console) {
  std::unique_ptr<Loop> loop;
  const auto give_up = [&](const Error& cause) {
    if (loop) {
      loop->give_up(cause);
    } else {
      group.fail(cause);
    }
  };
  try {
    {
      const Patience patience(group);
      loop = std::make_unique<Loop>(group, job, console);
    }
    return loop->run();
  } catch (const c10::Error& error) {
    // Without libtorch's stack of addresses.
    const Error short_error = as_error(std::runtime_error(error.what_without_backtrace()));
    give_up(short_error);
    throw short_error;
  } catch (const std::exception& error) {
    give_up(as_error(error));
    throw;
  }
}

}  // namespace dgc::train
