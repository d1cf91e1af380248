// `dgc-torch join` and `dgc-torch export`: the parts that need libtorch.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "process/stop_signal.h"
#include "process/tuning.h"
#include "torch_part.h"
#include "train/console.h"
#include "train/hub_export.h"

namespace dgc::app {

int join_here(const JoinJob& job) {
  process::keep_freed_memory();
  process::note_stop_signals();
  train::Console console(job.quiet);
  train::JoinRequest request = job.request;
  request.stop = &process::stop_signal;
  const train::JoinedRun joined = train::join_hub(request, console);
  if (job.as_json) {
    const nlohmann::ordered_json figures = {
        {"finished", joined.finished}, {"told", joined.told},
        {"name", joined.name},         {"round", joined.round},
        {"messages", joined.messages}, {"examples", joined.examples},
        {"bytes_up", joined.bytes_up}, {"bytes_down", joined.bytes_down},
        {"loss", joined.loss},         {"parameters_hash", joined.parameters_hash}};
    fmt::print("{}\n", figures.dump(2));
  } else {
    console.say(fmt::format("{} after round {}: {} messages with {} examples",
                            joined.finished ? "finished" : "left", joined.round, joined.messages,
                            joined.examples));
  }
  if (joined.finished) return 0;
  return process::stopped_by(process::stop_signal != 0 ? process::stop_signal : SIGTERM);
}

void export_run(const ExportJob& job) {
  train::Console console(job.quiet);
  train::export_hub_run(job.run, job.out, nlohmann::json::parse(job.own_settings), console);
}

}  // namespace dgc::app
