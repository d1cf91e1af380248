// Training in one mode, from top to bottom:
//
//   set up      the task (data and model), the optimizer, how many steps
//   resume      from the newest checkpoint, where asked to
//   step        batch → forward, backward (gradients leave while it runs) → exchange → update, or
//               local steps and a round now and then; the stepper knows
//   log         every few steps a line in metrics.jsonl and on the console
//   evaluate    after each epoch, every --evaluate-every steps and at the end, on the validation
//   data save        a checkpoint after each epoch, every --checkpoint-every steps, and on a signal
//   results     on the test data, where there are some; result.json and tensors.json
//
// All ranks do the same in the same order; rank 0 writes the files. What needs the same parameters
// on all workers waits, with local steps, for the end of their round.
#include "train/trainer.h"

#include <fmt/format.h>
#include <torch/version.h>
#include <xxhash.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "train/across_ranks.h"
#include "train/lr_schedule.h"
#include "train/metrics_log.h"
#include "train/prefetch.h"
#include "train/recipe.h"
#include "train/resume_point.h"
#include "train/run_costs.h"
#include "train/run_folder.h"
#include "train/skipped_files.h"
#include "train/step_totals.h"
#include "train/stepper.h"
#include "train/stopwatch.h"
#include "train/task.h"
#include "train/tensor_lines.h"

namespace dgc::train {
namespace {

template <typename Whole>
double real(Whole number) {
  return static_cast<double>(number);
}

class Trainer {
 public:
  Trainer(Group& group, const ModeRequest& request, Console& console)
      : group_(group),
        request_(request),
        settings_(request.settings),
        console_(console),
        first_(group.rank() == 0),
        threads_(threads_of_worker(group, settings_.threads)),
        schedule_(LrSchedule::parse(settings_.lr_schedule)) {
    torch::set_num_threads(threads_);
    task_ = make_task(settings_, {group.rank(), group.size()});
    compare_data();
    steps_per_epoch_ = static_cast<std::uint64_t>(
        std::ceil(real(task_->positions()) / real(task_->positions_of_step())));
    steps_ = settings_.steps > 0 ? static_cast<std::uint64_t>(settings_.steps)
                                 : steps_in(settings_.epochs);
    epochs_ = real(steps_) / real(steps_per_epoch_);
    StepperChoice choice =
        make_stepper(settings_, request.mode,
                     {.group = group,
                      .model = task_->model(),
                      .steps = steps_,
                      .steps_per_epoch = static_cast<std::int64_t>(steps_per_epoch_),
                      .folder = request.folder,
                      .resumes = request.resume});
    reason_ = std::move(choice.reason);
    chooses_ = choice.chooses;
    stepper_ = std::move(choice.stepper);
    // Dropout differs between workers, and the same run has the same dropout.
    torch::manual_seed(static_cast<std::uint64_t>(settings_.seed) * 1'000'003u +
                       static_cast<std::uint64_t>(group.rank()) + 1);
    final_ratio_ = stepper_->final_ratio();
    // What a dense ring would bring down in each step.
    const double peers = group.size() - 1;
    ring_bytes_ = 8.0 * real(stepper_->report().parameters) * peers / group.size();
  }

  /// The others would wait for this rank until their deadline, and not know why.
  void give_up(const Error& cause) noexcept { stepper_->abandon(cause); }

  TrainedMode run() {
    if (first_) std::filesystem::create_directories(request_.folder);
    if (first_) keep_vocabulary(request_.folder.parent_path(), task_->vocabulary());
    if (request_.resume) resume();
    if (chooses_) keep_costs(group_, request_.folder, stepper_->costs());
    if (first_) log_.emplace(request_.folder / kMetricsFile, stepper_->steps());
    announce();
    bool stopped = false;
    bool did_steps = false;
    {
      Prefetcher batches(*task_, cursor_, static_cast<int>(settings_.loaders));
      clock_.lap();
      while (stepper_->steps() < steps_ && !stopped) {
        step(batches.next());
        did_steps = true;
        const bool last = stepper_->steps() == steps_;
        note_what_is_due(last);
        if (!stepper_->together()) continue;
        if (due_.line) log_step();
        if (due_.evaluation) evaluate();
        stopped = stepper_->stop_requested() && !last;
        // A run that is shorter than the interval of comparisons has its comparison here.
        if (last || stopped) stepper_->check_parameters();
        if (due_.checkpoint || stopped) save();
        due_ = {};
      }
    }
    // Before anything else can go wrong: a continuation that has no step to do could not tell.
    if (first_ && did_steps) write_tensors();
    if (!stopped && task_->has_test()) test();
    TrainedMode trained{.stopped = stopped,
                        .figures = {.result = result(stopped), .facts = facts()}};
    if (first_) write_json(request_.folder / kResultFile, to_json(trained.figures));
    return trained;
  }

 private:
  // Setting up.

  /// 0.07 epochs of 100 steps are 7, whatever floating point makes of it.
  std::uint64_t steps_in(double epochs) const {
    return static_cast<std::uint64_t>(std::ceil(epochs * real(steps_per_epoch_) - 1e-6));
  }

  /// Ranks that have other data would evaluate at other steps, and wait for each other.
  void compare_data() {
    const std::string words = task_->vocabulary();
    require_same(group_,
                 fmt::format("{} examples, vocabulary {:016x}", task_->positions(),
                             XXH64(words.data(), words.size(), 0)),
                 "give all workers the same data");
  }

  void announce() {
    const SgdReport report = stepper_->report();
    for (const std::string& fact : task_->facts()) console_.say(fact);
    if (sends_all(request_.mode)) {
      console_.say(
          fmt::format("[{}] all of {} parameters are sent", request_.mode, report.parameters));
    } else {
      console_.say(fmt::format("[{}] {} of {} parameters sparse, overlap {}", request_.mode,
                               report.sparse_parameters, report.parameters, report.overlap));
    }
    if (is_local(request_.mode)) {
      console_.say(fmt::format("[{}] {} local steps of {} between two exchanges", request_.mode,
                               settings_.local_steps, settings_.inner));
    }
    if (!reason_.empty()) console_.say(fmt::format("[{}] {}", request_.mode, reason_));
    if (chooses_) console_.say("[" + request_.mode + "] auto by " + costs_text(stepper_->costs()));
  }

  double epoch() const {
    return real(cursor_.epoch) + real(cursor_.position) / real(task_->positions());
  }

  double steps_of_exchange() const {
    return is_local(request_.mode) ? real(settings_.local_steps) : 1.0;
  }

  /// Whether the step that was done is one of each so many.
  bool every(std::int64_t steps) const {
    return steps > 0 && stepper_->steps() % static_cast<std::uint64_t>(steps) == 0;
  }

  // A step.

  void step(const Prefetcher::Item& item) {
    Times& times = totals_.times;
    times.data += clock_.lap();
    if (item.draw.first == 0) task_->begin_epoch();
    const double factor = schedule_.factor(epoch(), epochs_, settings_.lr_warmup);
    lr_ = settings_.lr * factor;
    stepper_->set_lr(lr_);
    stepper_->zero_grad();
    if (item.batch.examples > 0) {
      torch::Tensor loss = task_->loss(item.batch);
      since_.loss += loss.item<double>() * item.batch.weight;
      // Between exchanges a worker has its own examples alone, however many the others have.
      if (item.batch.weight != 1.0 && !is_local(request_.mode)) loss = loss * item.batch.weight;
      loss.backward();
    }
    const double computed = clock_.lap();
    times.compute += computed;
    if (request_.stop != nullptr && *request_.stop != 0) stepper_->request_stop();
    stepper_->step(item.batch.examples > 0);
    cursor_.next(*task_);
    count_step(totals_, *stepper_, ring_bytes_, clock_.lap());
    ++since_.steps;
    since_.read += item.batch.examples;
    since_.examples += task_->examples_in(item.draw.count);
    unread_ += item.draw.count;
    if (const std::string line = stepper_->after_step(computed); !line.empty()) {
      console_.say(fmt::format("[{}] {}", request_.mode, line));
    }
    times.other += clock_.lap();
  }

  /// At the end of the run all workers have to have the same parameters, wherever their round is.
  void note_what_is_due(bool last) {
    const bool epoch_ended = cursor_.position == 0;
    due_.line |= epoch_ended || last || every(settings_.log_every);
    due_.evaluation |= epoch_ended || last || every(settings_.evaluate_every);
    due_.checkpoint |= epoch_ended || last || every(settings_.checkpoint_every);
    if (!last || stepper_->together()) return;
    clock_.lap();
    stepper_->come_together();
    count_exchange(totals_, *stepper_, clock_.lap());
  }

  /// Of the steps since the last line.
  void log_step() {
    const std::vector<double> sums = summed(
        group_, {since_.loss / real(std::max<std::int64_t>(since_.steps, 1)), real(since_.read)});
    const double loss = sums[0] / group_.size();
    if (sums[1] > 0.0) unread_ = 0;
    check_progress(loss);
    const Times& now = totals_.times;
    const double seconds = now.training() - since_.before.training();
    const double rate = seconds > 0.0 ? real(since_.examples) / seconds : 0.0;
    if (first_) log_->write(step_line_now(loss, rate));
    console_.progress(
        {.mode = request_.mode,
         .step = stepper_->steps(),
         .steps = steps_,
         .epoch = epoch(),
         .epochs = epochs_,
         .examples_per_second = rate,
         .seconds_left =
             now.training() / real(totals_.all.steps) * real(steps_ - stepper_->steps()),
         .loss = loss,
         .metric = metric_text(),
         .bytes_per_step = real(stepper_->stats().bytes_up) / steps_of_exchange(),
         .message_ratio = stepper_->stats().message_ratio,
         .waiting_share = seconds > 0.0 ? (now.waiting - since_.before.waiting) / seconds : 0.0});
    since_ = {.before = now};
    totals_.times.other += clock_.lap();
  }

  void check_progress(double loss) {
    // A file may be damaged; that a whole batch is means that there are no data any more.
    if (unread_ >= task_->positions_of_step()) {
      skipped_.add(group_, task_->problems().take(), console_);
      throw Error(ErrorCode::io, "train", fmt::format("step {}", stepper_->steps()),
                  "none of the last examples could be read",
                  "are the data still there? The last checkpoint is good: --resume");
    }
    if (!std::isfinite(loss)) {
      throw Error(ErrorCode::nonfinite_gradient, "train", fmt::format("step {}", stepper_->steps()),
                  fmt::format("the loss is {}", loss), "try a lower --lr or --lr-warmup");
    }
  }

  StepLine step_line_now(double loss, double rate) const {
    const StepStats& stats = stepper_->stats();
    const Times& now = totals_.times;
    const Times& before = since_.before;
    return {.step = real(stepper_->steps()),
            .epoch = epoch(),
            .seconds = now.training(),
            .loss = loss,
            .lr = lr_,
            .ratio = stats.ratio,
            // A step with ratio 1 sends everything, also the entries that are zero.
            .achieved_ratio = stats.ratio < 1.0 ? stats.achieved_ratio : 1.0,
            .message_bytes = real(stats.message_bytes),
            .message_ratio = stats.message_ratio,
            .traffic_ratio = stats.traffic_ratio,
            .bytes_up = real(totals_.all.bytes_up),
            .bytes_down = real(totals_.all.bytes_down),
            .gradient_norm = stats.gradient_norm,
            .residual_norm = stats.residual_norm,
            .threshold = stats.threshold,
            .clip_factor = stats.clip_factor,
            .examples_per_second = rate,
            .time = {.data = now.data - before.data,
                     .compute = now.compute - before.compute,
                     .waiting = now.waiting - before.waiting,
                     .apply = now.apply - before.apply}};
  }

  std::string metric_text() const {
    if (!valid_) return {};
    const MetricInfo info = task_->metric();
    return fmt::format("{} {:.2f}{}", info.name, valid_->metrics[0].second,
                       info.unit.empty() ? "" : " " + info.unit);
  }

  // Evaluations.

  Scores scores_of(Split split) {
    const Patience patience(group_);
    return task_->scores(summed(group_, task_->evaluate(split)));
  }

  void evaluate() {
    clock_.lap();
    {
      const Patience patience(group_);
      // Statistics of batch normalisation are each worker's own until now.
      stepper_->sync_buffers();
    }
    valid_ = scores_of(Split::valid);
    schedule_.evaluated(valid_->loss);
    const double metric = valid_->metrics[0].second;
    const bool better =
        !best_ || (task_->metric().higher_is_better ? metric > *best_ : metric < *best_);
    if (better) best_ = metric;
    skipped_.add(group_, task_->problems().take(), console_);
    totals_.times.evaluate += clock_.lap();
    if (!first_) return;
    log_->write(EvaluationLine{.step = real(stepper_->steps()),
                               .epoch = epoch(),
                               .seconds = totals_.times.training(),
                               .bytes_up = real(totals_.all.bytes_up),
                               .bytes_down = real(totals_.all.bytes_down),
                               .loss = valid_->loss,
                               .metric = metric,
                               .metrics = valid_->metrics});
    console_.say(
        fmt::format("[{}] epoch {:.4g}/{:.4g}  step {}  {:.1f} s  loss {:.4f}  {}  sent {:.2f} MB",
                    request_.mode, epoch(), epochs_, stepper_->steps(), totals_.times.training(),
                    valid_->loss, metric_text(), real(totals_.all.bytes_up) / 1e6));
  }

  void test() {
    clock_.lap();
    test_ = scores_of(Split::test);
    skipped_.add(group_, task_->problems().take(), console_);
    totals_.times.evaluate += clock_.lap();
  }

  // Checkpoints.

  void save() {
    clock_.lap();
    const Patience patience(group_);
    const ResumePoint here{.epoch = cursor_.epoch,
                           .position = cursor_.position,
                           .positions = task_->positions(),
                           .done = stepper_->steps(),
                           .steps = steps_,
                           .skipped_files = skipped_.all(),
                           .lr = schedule_.state(),
                           .totals = totals_,
                           .best_metric = best_,
                           .validation = valid_};
    stepper_->save(request_.folder / kCheckpoints, here.text(), static_cast<int>(settings_.keep),
                   task_->carried());
    totals_.times.checkpoint += clock_.lap();
  }

  void resume() {
    const Patience patience(group_);
    const auto checkpoint = stepper_->load(request_.folder / kCheckpoints);
    if (!checkpoint) return;
    const ResumePoint point = ResumePoint::from(checkpoint->user);
    cursor_ = {point.epoch, point.position};
    stepper_->continue_at(point.done);
    // Text has other rows with another number of workers: the nearest place in it.
    if (point.positions != task_->positions()) {
      cursor_.position = cursor_.position * task_->positions() / point.positions;
    }
    // The end of the run: as many steps as before, or with other batches as many epochs.
    if (checkpoint->workers == group_.size()) {
      steps_ = point.steps;
    } else if (settings_.steps == 0) {
      steps_ = stepper_->steps() + steps_in(std::max(0.0, settings_.epochs - epoch()));
    }
    skipped_.set(point.skipped_files);
    schedule_.set_state(point.lr);
    totals_ = point.totals;
    since_.before = totals_.times;
    best_ = point.best_metric;
    valid_ = point.validation;
    task_->carry(checkpoint->mine);
    console_.say(fmt::format("[{}] continues after step {} of {}", request_.mode, stepper_->steps(),
                             steps_));
  }

  // Results.

  void write_tensors() const {
    write_json(request_.folder / kTensorsFile, tensor_lines(stepper_->report(), request_.mode));
  }

  RunFacts facts() const {
    const MetricInfo info = task_->metric();
    return {.model = settings_.model,
            .parameters = real(stepper_->report().parameters),
            .workers = real(group_.size()),
            .engine = std::string(group_.engine()),
            .threads_per_worker = real(threads_),
            .libtorch = TORCH_VERSION,
            .batch = real(batch_of_worker(settings_, group_.size()) * group_.size()),
            .metric_name = info.name,
            .metric_unit = info.unit,
            .higher_is_better = info.higher_is_better,
            .steps_per_epoch = real(steps_per_epoch_),
            .examples_per_step = real(task_->examples_in(task_->positions_of_step())),
            .example_name = task_->example_name()};
  }

  Result result(bool stopped) const {
    Result result;
    if (const auto& scores = test_ ? test_ : valid_) {
      result.metric = scores->metrics[0].second;
      result.metrics = scores->metrics;
      result.loss = scores->loss;
    }
    result.metric_of = test_ || !task_->has_test() ? "test" : "validation";
    if (valid_) result.validation_metric = valid_->metrics[0].second;
    if (best_) result.best_metric = *best_;
    result.epochs = epoch();
    result.steps = real(stepper_->steps());
    result.set_totals(totals_);
    result.final_ratio = final_ratio_;
    result.skipped_files = real(skipped_.all().size());
    result.parameters_hash = hash_of(task_->model());
    if (chooses_) result.costs = costs_text(stepper_->costs());
    result.finished = !stopped;
    return result;
  }

  Group& group_;
  const ModeRequest& request_;
  const Settings& settings_;
  Console& console_;
  const bool first_;  // rank 0, which writes the files
  const int threads_;
  LrSchedule schedule_;
  std::unique_ptr<Task> task_;
  std::unique_ptr<Stepper> stepper_;
  std::uint64_t steps_per_epoch_ = 0, steps_ = 0;
  double epochs_ = 0.0;
  bool chooses_ = false;  // by costs: the algorithm is auto
  std::string reason_;    // of what the settings left open
  double final_ratio_ = 1.0;
  double ring_bytes_ = 0.0;  // of a step
  double lr_ = 0.0;          // of the last step

  Cursor cursor_;
  Stopwatch clock_;
  Totals totals_;
  std::int64_t unread_ = 0;  // positions since any rank could read one
  SkippedFiles skipped_;
  std::optional<Scores> valid_, test_;
  std::optional<double> best_;
  std::optional<MetricsLog> log_;

  /// What has to be done where all workers have the same parameters next.
  struct Due {
    bool line = false, evaluation = false, checkpoint = false;
  } due_;

  struct SinceLastLine {
    Times before;  // totals at that line
    double loss = 0.0;
    std::int64_t steps = 0, examples = 0;
    std::int64_t read = 0;  // examples of this rank alone
  } since_;
};

}  // namespace

TrainedMode train_mode(Group& group, const ModeRequest& request, Console& console) {
  std::unique_ptr<Trainer> trainer;
  const auto give_up = [&](const Error& cause) {
    if (trainer) {
      trainer->give_up(cause);
    } else {
      group.fail(cause);
    }
  };
  try {
    {
      const Patience patience(group);
      trainer = std::make_unique<Trainer>(group, request, console);
    }
    return trainer->run();
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
