#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "checkpoint/disk.h"
#include "checkpoint/impl.h"
#include "checkpoint/names.h"
#include "checkpoint/survey.h"
#include "checkpoint/together.h"

namespace dgc::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kOperation = "open checkpoint";

struct Choice {
  std::uint64_t step;
  std::uint64_t id;
};

Survey survey_of(Group& group, const fs::path& folder, std::optional<std::uint64_t> step) {
  const json wanted = step ? json(*step) : json();
  const auto all = agree(group, kOperation, [&] {
    return json{{"step", wanted}, {"sightings", to_json(look(folder))}};
  });
  std::vector<std::vector<Sighting>> sightings;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank]["step"] != all[0]["step"]) {
      throw Error(ErrorCode::configuration_mismatch, kOperation, fmt::format("rank {}", rank),
                  fmt::format("asks for step {} where rank 0 asks for {}", all[rank]["step"].dump(),
                              all[0]["step"].dump()));
    }
    sightings.push_back(sightings_of(all[rank]["sightings"]));
  }
  return Survey(std::move(sightings));
}

/// What to do instead, if the checkpoint of `step` is no good.
std::string hint_below(const Survey& survey, std::uint64_t step) {
  for (const std::uint64_t earlier : survey.steps()) {
    if (earlier >= step) continue;
    const auto id = survey.judge(earlier).id;
    if (!id) continue;
    return fmt::format(
        "the newest good one before it is {}; to go on from there, move what is newer "
        "away, or open step {}",
        survey.find(survey.lowest(earlier, *id), earlier, *id)->path, earlier);
  }
  return "there is no good one before it";
}

Choice choose(const Survey& survey, const fs::path& folder, std::optional<std::uint64_t> wanted) {
  std::string problem;
  for (const std::uint64_t step : survey.steps()) {
    if (wanted && step != *wanted) continue;
    const Verdict verdict = survey.judge(step);
    if (verdict.error) {
      const Error& error = *verdict.error;
      std::string hint = error.hint().empty() ? "" : error.hint() + "; ";
      throw Error(error.code(), kOperation, error.subject(), error.problem(),
                  std::move(hint) + hint_below(survey, step));
    }
    if (verdict.id) return {step, *verdict.id};
    if (problem.empty()) problem = fmt::format("{}: {}", step_name(step), verdict.missing);
  }
  if (problem.empty()) {
    throw Error(ErrorCode::io, kOperation, folder.string(),
                fmt::format("has no checkpoint of step {}", wanted.value_or(0)),
                hint_below(survey, wanted.value_or(0)));
  }
  throw Error(ErrorCode::io, kOperation, folder.string(), problem,
              "start a rank that sees the disk of those, or copy them to one that is seen");
}

/// The manifest, also for ranks that do not see it: from the rank that has it in `directory`.
Manifest share_manifest(Group& group, int from, const fs::path& directory) {
  const auto all = agree(group, kOperation, [&] {
    return group.rank() == from ? json(read_manifest(directory).text()) : json();
  });
  const auto text = all[static_cast<std::size_t>(from)].get<std::string>();
  return parse_manifest(std::as_bytes(std::span(text)), kManifestName.data());
}

/// Damage that all ranks can tell from the survey alone: files that should not be there, or are
/// not.
void check_survey(const Survey& survey, const Choice& choice, const Manifest& manifest,
                  const std::string& hint) {
  for (int rank = 0; rank < survey.ranks(); ++rank) {
    const Sighting* const sighting = survey.find(rank, choice.step, choice.id);
    if (sighting == nullptr) continue;
    if (!sighting->stray.empty()) {
      throw Error(ErrorCode::state_mismatch, kOperation, sighting->stray,
                  fmt::format("rank {}: does not belong to this checkpoint of {} workers", rank,
                              manifest.workers),
                  hint);
    }
    for (std::size_t file = 0; file < manifest.files.size(); ++file) {
      if (sighting->expected[file] == '0') continue;
      if (survey.lowest_with(choice.step, choice.id, file) >= 0) continue;
      throw Error(ErrorCode::io, kOperation,
                  (fs::path(sighting->path) / manifest.files[file].name).string(),
                  fmt::format("rank {}: is missing", rank), hint);
    }
  }
}

/// Files that `rank` reads: all shared ones, and what becomes of old ranks' states.
std::vector<std::size_t> needed_by(int rank, int ranks, const Manifest& manifest) {
  std::vector<std::size_t> files;
  for (std::size_t i = 0; i < manifest.shared_files(); ++i) files.push_back(i);
  for (const int old : old_ranks_of(rank, ranks, manifest.workers)) {
    files.push_back(manifest.rank_file(old));
  }
  return files;
}

}  // namespace

std::optional<Checkpoint> open(Group& group, const fs::path& folder,
                               std::optional<std::uint64_t> step) {
  const Survey survey = survey_of(group, folder, step);
  if (survey.steps().empty() && !step) return std::nullopt;
  const Choice choice = choose(survey, folder, step);
  const std::string hint = hint_below(survey, choice.step);
  const int first = survey.lowest(choice.step, choice.id);
  const Sighting* const mine = survey.find(group.rank(), choice.step, choice.id);

  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->group = &group;
  impl->path = mine != nullptr ? folder / step_name(choice.step, mine->stage)
                               : fs::path(survey.find(first, choice.step, choice.id)->path);
  impl->manifest = share_manifest(group, first, impl->path);
  const Manifest& manifest = impl->manifest;
  check_survey(survey, choice, manifest, hint);

  std::vector<Transfer> transfers;  // the same on all ranks
  std::vector<std::size_t> local;
  for (int rank = 0; rank < group.size(); ++rank) {
    const Sighting* const sighting = survey.find(rank, choice.step, choice.id);
    for (const std::size_t file : needed_by(rank, group.size(), manifest)) {
      if (sighting == nullptr || sighting->present[file] == '0') {
        transfers.push_back({survey.lowest_with(choice.step, choice.id, file), rank, file});
      } else if (rank == group.rank()) {
        local.push_back(file);
      }
    }
  }
  agree(group, kOperation, [&] {
    for (const std::size_t file : local) {
      const MappedFile mapped(impl->source_of(file));
      check_bytes(mapped.contents(), manifest.files[file], impl->subject_of(file), hint);
    }
    return json();
  });
  impl->fetched = fetch(group, manifest, transfers, impl->path, hint);
  return Checkpoint(std::move(impl));
}

}  // namespace dgc::checkpoint
