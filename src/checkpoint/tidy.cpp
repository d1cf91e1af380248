#include "checkpoint/tidy.h"

#include <set>

#include "checkpoint/disk.h"

namespace dgc::checkpoint {

namespace fs = std::filesystem;

void settle(const fs::path& folder, const Survey& survey, int rank, std::uint64_t step) {
  const fs::path whole = folder / step_name(step);
  const auto chosen = survey.judge(step).id;
  const Sighting* const here = chosen ? survey.find(rank, step, *chosen) : nullptr;
  if (here != nullptr) {
    // What open() would choose stays under one name or another at every moment.
    if (here->stage != Stage::whole) {
      discard(whole);
      rename_path(folder / step_name(step, here->stage), whole);
    }
    discard(folder / step_name(step, Stage::replaced));
  }
  discard(folder / step_name(step, Stage::partial));
}

void prune(const fs::path& folder, const Survey& survey, int rank, std::uint64_t step, int keep) {
  std::set<std::uint64_t> here;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_probe_name(name) && entry.is_regular_file()) fs::remove(entry.path());
    const auto parsed = parse_step_name(name);
    if (!parsed || !entry.is_directory()) continue;
    if (parsed->stage == Stage::gone) {
      remove_gone(entry.path());
    } else {
      here.insert(parsed->step);
    }
  }
  for (const std::uint64_t found : here) settle(folder, survey, rank, found);

  // Steps after this one are of a run that was taken back; they neither count nor go.
  int complete = 0;
  for (const std::uint64_t found : survey.steps()) {
    if (found > step) continue;
    if (complete < keep) {
      complete += survey.judge(found).id.has_value();
      continue;
    }
    for (const Stage stage : {Stage::whole, Stage::replaced}) {
      const fs::path directory = folder / step_name(found, stage);
      if (fs::exists(directory / kManifestName)) discard(directory);
    }
  }
}

}  // namespace dgc::checkpoint
