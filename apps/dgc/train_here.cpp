// `dgc-torch train`: the part of one rank, or of all as threads.
#include <fmt/format.h>

#include <thread>

#include "dgc/error.h"
#include "process/rendezvous.h"
#include "process/stop_signal.h"
#include "process/terminal.h"
#include "process/tuning.h"
#include "report/compare.h"
#include "report/page.h"
#include "torch_part.h"
#include "train/across_ranks.h"
#include "train/recipe.h"
#include "train/relevant.h"
#include "train/run_folder.h"
#include "train/train_run.h"

namespace dgc::app {
namespace {

void print_settings(const train::Settings& settings, train::Console& console) {
  const auto all = train::relevant(settings);
  std::string line = "settings:";
  for (const auto& [name, value] : all.items()) {
    if (value.is_string() && value.get<std::string>().empty()) continue;
    const std::string word =
        fmt::format(" {}={}", name, value.is_string() ? value.get<std::string>() : value.dump());
    if (line.size() + word.size() > 100) {
      console.say(line);
      line.assign(1, ' ');
    }
    line += word;
  }
  console.say(line);
}

/// Rank 0: what came out, as a page and on the terminal.
void show(const train::TrainedRun& trained, const TrainJob& job) {
  const report::Run run = report::read_run(job.folder);
  report::write_report(std::span(&run, 1), job.folder / train::kReportFile);
  if (trained.stopped) return;
  if (job.as_json) {
    fmt::print("{}\n", train::to_json(trained.summary).dump(2));
  } else {
    fmt::print("\n{}\n{}\nreport: {}\n", process::table(report::comparison_rows(run)),
               report::comparison_words(run), (job.folder / train::kReportFile).string());
  }
}

/// One rank's part. Returns the exit status.
int work(Group& group, const TrainJob& job) {
  const bool first = group.rank() == 0;
  train::Console console(job.quiet || !first);
  console.say(fmt::format("dgc train {}: {} on {} workers ({}), run in {}", job.settings.recipe,
                          job.settings.model, group.size(), group.engine(), job.folder.string()));
  print_settings(job.settings, console);
  if (const std::string note = process::security_note(group); !note.empty()) console.say(note);
  const train::TrainedRun trained = train::train_run(group,
                                                     {.settings = job.settings,
                                                      .folder = job.folder,
                                                      .resume = job.resume,
                                                      .stop = &process::stop_signal},
                                                     console);
  if (first) show(trained, job);
  if (!trained.stopped) return 0;
  console.say(fmt::format("stopped, with a checkpoint. Continue with: dgc train --resume {}",
                          job.folder.string()));
  // Another rank may have had the signal.
  return process::stopped_by(process::stop_signal != 0 ? process::stop_signal : SIGTERM);
}

std::chrono::milliseconds timeout_of(const train::Settings& settings) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(settings.timeout * 1000.0));
}

std::unique_ptr<Group> over_link(std::unique_ptr<Group> group, const train::Settings& settings) {
  if (settings.emulate_link.empty()) return group;
  return make_emulated_link(std::move(group), parse_link("--emulate-link", settings.emulate_link));
}

}  // namespace

int train_as_rank(const TrainJob& job, int workers) {
  process::keep_freed_memory();
  const auto group = over_link(process::join_group("auto", timeout_of(job.settings)), job.settings);
  process::note_stop_signals();  // before, there is nothing to save: a signal ends it at once
  if (workers > 0 && workers != group->size()) {
    throw Error(ErrorCode::invalid_argument, "train", "--workers",
                fmt::format("{} were asked for, {} were started", workers, group->size()),
                "leave it out under mpirun and torchrun");
  }
  TrainJob mine = job;
  // Each has a clock of its own.
  mine.folder = train::gathered(*group, job.folder.string()).front();
  return work(*group, mine);
}

int train_in_threads(const TrainJob& job, int workers) {
  process::note_stop_signals();
  process::keep_freed_memory();
  if (workers > 1 && train::has_dropout(job.settings)) {
    throw Error(ErrorCode::invalid_argument, "train", "--launch threads",
                fmt::format("{} has dropout, whose random numbers belong to the process",
                            job.settings.model),
                "use --launch processes, or --dropout 0");
  }
  auto groups = make_local_groups(workers, timeout_of(job.settings));
  for (auto& group : groups) group = over_link(std::move(group), job.settings);
  std::vector<int> statuses(groups.size());
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < groups.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        statuses[r] = work(*groups[r], job);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::jthread& thread : threads) thread.join();
  // The cause first, rather than that another rank has failed.
  for (const bool causes : {true, false}) {
    for (const auto& error : errors) {
      if (!error) continue;
      try {
        std::rethrow_exception(error);
      } catch (const Error& e) {
        if (!causes || e.code() != ErrorCode::peer_failed) throw;
      }
    }
  }
  return statuses[0];
}

}  // namespace dgc::app
