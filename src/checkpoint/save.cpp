// A save in six stages; Saving::run lists them. All ranks end a stage before any begins the next,
// and that alone makes a kill at any moment harmless:
//
//   - Until put_in_place nothing that was there before is touched.
//   - The manifest is the last file of a directory, so a directory with a manifest is complete.
//   - No disk renames before all disks have their manifest. So if one disk has step-N, every other
//     has it too, or has all of it in step-N.tmp, where a reader finds it.
//   - Old checkpoints are removed only when the new one is in place on all disks.
//
// On each disk one rank leads: the lowest that sees the folder. It makes the directory, writes what
// the ranks share, and clears up; the others write their own state only.
#include "checkpoint/save.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>

#include "base/file.h"
#include "checkpoint/all_ranks.h"
#include "checkpoint/disk.h"
#include "checkpoint/inventory.h"
#include "dgc/version.h"

namespace dgc::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kOperation = "save checkpoint";

/// An empty file that is there as long as this object.
class Probe {
 public:
  explicit Probe(fs::path path) : path_(std::move(path)) { create_file(path_); }
  ~Probe() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

 private:
  fs::path path_;
};

json to_json(const FileEntry& entry) { return {entry.name, entry.size, entry.checksum}; }
FileEntry entry_from(const json& value) { return {value.at(0), value.at(1), value.at(2)}; }

[[noreturn]] void reject(std::string subject, std::string problem) {
  throw Error(ErrorCode::invalid_argument, kOperation, std::move(subject), std::move(problem));
}

void check_arguments(const fs::path& folder, const Contents& contents, int keep) {
  if (keep < 1) reject("keep", fmt::format("{} checkpoints, at least 1", keep));
  if (contents.state == nullptr) reject("state", "is missing");
  if (folder.empty()) reject("folder", "has no name");
  std::set<std::string_view> names;
  for (const Blob& blob : contents.shared) {
    const std::string problem = problem_of_shared_name(blob.name);
    if (!problem.empty()) reject(fmt::format("'{}'", blob.name), problem);
    if (!names.insert(blob.name).second) reject(fmt::format("'{}'", blob.name), "is there twice");
  }
  Manifest manifest;
  manifest.user = contents.user;
  manifest.text();  // throws unless it is UTF-8
}

/// Throws Error unless a rank brings what rank 0 brings.
void compare_offers(const json& of_rank_0, const json& theirs, int rank) {
  for (const char* what : {"step", "keep", "state step", "state workers"}) {
    require_same(kOperation, rank, what, theirs[what], of_rank_0[what]);
  }
  const json& first = of_rank_0["shared"];
  const json& other = theirs["shared"];
  require_same(kOperation, rank, "the number of shared files", other.size(), first.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    require_same(kOperation, rank, "the shared file", other[i][0], first[i][0]);
    if (other[i] == first[i]) continue;
    throw Error(ErrorCode::diverged, kOperation, fmt::format("rank {}", rank),
                fmt::format("has another {} than rank 0", first[i][0].get<std::string>()),
                "shared files have to be the same on all ranks; go back to the last checkpoint");
  }
}

/// Ends what an interrupted save of `step` left on this disk: the directory that open() would
/// choose gets its final name, and its other stages are removed. Where nothing is complete, only
/// the partial directory is removed.
void settle(const fs::path& folder, const Inventory& inventory, int rank, std::uint64_t step) {
  const fs::path whole = folder / step_name(step);
  const auto chosen = inventory.judge(step).id;
  const Sighting* const here = chosen ? inventory.find(rank, step, *chosen) : nullptr;
  if (here != nullptr) {
    // What open() would choose has one name or another at every moment.
    if (here->stage != Stage::whole) {
      discard(whole);
      rename_path(folder / step_name(step, here->stage), whole);
    }
    discard(folder / step_name(step, Stage::replaced));
  }
  discard(folder / step_name(step, Stage::partial));
}

/// Settles all steps on this disk. Then removes what killed runs left, and all checkpoints but the
/// newest `keep` complete ones up to `step`.
void prune(const fs::path& folder, const Inventory& inventory, int rank, std::uint64_t step,
           int keep) {
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
  for (const std::uint64_t found : here) settle(folder, inventory, rank, found);

  // Later steps are of a run that was taken back to an earlier one: they do not count, and stay.
  int complete = 0;
  for (const std::uint64_t found : inventory.steps()) {
    if (found > step) continue;
    if (complete < keep) {
      complete += inventory.judge(found).id.has_value();
      continue;
    }
    for (const Stage stage : {Stage::whole, Stage::replaced}) {
      const fs::path directory = folder / step_name(found, stage);
      if (fs::exists(directory / kManifestName)) discard(directory);
    }
  }
}

/// One call of save().
class Saving {
 public:
  Saving(Group& group, fs::path folder, const Contents& contents, int keep, const Trace& trace)
      : group_(group),
        folder_(std::move(folder)),
        contents_(contents),
        keep_(keep),
        trace_(trace),
        partial_(folder_ / step_name(contents.step, Stage::partial)),
        whole_(folder_ / step_name(contents.step)),
        replaced_(folder_ / step_name(contents.step, Stage::replaced)) {}

  fs::path run() {
    const std::vector<json> offers = exchange_offers();
    find_leaders(offers);
    write_files(offers);
    write_manifests();
    put_in_place();
    remove_old();
    return whole_;
  }

 private:
  /// 1. Each rank says what it brings, and leaves a probe by which others know its folder.
  std::vector<json> exchange_offers() {
    auto offers = stage([this] {
      check_arguments(folder_, contents_, keep_);
      trace("folder");
      fs::create_directories(folder_);
      sync_directory(fs::absolute(folder_).parent_path());
      json shared = json::array();
      for (const Blob& blob : contents_.shared) {
        shared.push_back(to_json(measure(blob.name, blob.bytes)));
      }
      // Random, so that what a killed run left is not taken for the probe of a rank of this one.
      std::random_device random;
      const std::uint64_t nonce = (std::uint64_t{random()} << 32) | random();
      const std::string name = probe_name(nonce, group_.rank());
      trace("probe");
      probe_.emplace(folder_ / name);
      return json{{"probe", name},
                  {"step", contents_.step},
                  {"keep", keep_},
                  {"state step", contents_.state->step()},
                  {"state workers", contents_.state->workers()},
                  {"user", group_.rank() == 0 ? contents_.user : ""},
                  {"shared", std::move(shared)},
                  {"seen", look_into(folder_, contents_.step)}};
    });
    for (std::size_t rank = 1; rank < offers.size(); ++rank) {
      compare_offers(offers[0], offers[rank], group_.world_rank(static_cast<int>(rank)));
    }
    return offers;
  }

  /// 2. Each rank looks for the probes of the others. Leaders clear up after an interrupted save of
  /// this step and make the directory.
  void find_leaders(const std::vector<json>& offers) {
    std::vector<json> seen;
    for (const json& offer : offers) seen.push_back(offer["seen"]);
    const Inventory inventory(seen);
    const auto leaders = stage([&] {
      for (leader_ = 0; leader_ < group_.rank(); ++leader_) {
        // By name, not from a listing: network file systems cache listings.
        if (fs::exists(folder_ / offers[static_cast<std::size_t>(leader_)]["probe"])) break;
      }
      if (leads()) {
        trace("settle");
        settle(folder_, inventory, group_.rank(), contents_.step);
        trace("directory");
        fs::create_directory(partial_);
        made_ = true;
      }
      return json(leader_);
    });
    probe_.reset();
    for (std::size_t rank = 0; rank < leaders.size(); ++rank) {
      const auto leader = leaders[rank].get<std::size_t>();
      if (leaders[leader] != leaders[rank]) {
        if (leads()) take_back();
        throw Error(ErrorCode::io, kOperation, folder_.string(),
                    fmt::format("ranks {} and {} do not see the same files there", rank, leader),
                    "the file system does not show new files to other machines at once");
      }
      if (leader == static_cast<std::size_t>(leader_)) {
        manifest_.ranks_here.push_back(static_cast<int>(rank));
      }
    }
  }

  /// 3. Each rank writes its state, leaders the shared files. All learn sizes and checksums.
  void write_files(const std::vector<json>& offers) {
    manifest_.version = DGC_VERSION;
    manifest_.step = contents_.step;
    manifest_.state_step = contents_.state->step();
    manifest_.state_workers = contents_.state->workers();
    manifest_.workers = group_.size();
    manifest_.user = offers[0]["user"];
    for (const json& file : offers[0]["shared"]) manifest_.files.push_back(entry_from(file));

    const auto rank_files = stage([this] {
      const std::string name = rank_file_name(group_.rank());
      trace("rank file");
      contents_.state->save(partial_ / name);
      if (leads()) {
        for (const Blob& blob : contents_.shared) {
          trace("shared file");
          write_file(partial_ / blob.name, blob.bytes);
        }
      }
      const MappedFile written(partial_ / name);
      return to_json(measure(name, written.contents()));
    });
    for (const json& file : rank_files) manifest_.files.push_back(entry_from(file));
  }

  /// 4. Last of all files: a directory that has it is complete.
  void write_manifests() {
    stage([this] {
      if (leads()) {
        trace("manifest");
        const std::string text = manifest_.text();
        write_file(partial_ / kManifestName, std::as_bytes(std::span(text)));
      }
      return json();
    });
  }

  /// 5. The directory gets its name. What had the name before stays, as step-N.old.
  void put_in_place() {
    stage([this] {
      if (leads()) {
        if (fs::exists(fs::symlink_status(whole_))) set_aside();
        trace("rename");
        rename_path(partial_, whole_);
        placed_ = true;
      }
      return json();
    });
  }

  void set_aside() {
    if (!fs::is_directory(fs::symlink_status(whole_))) {
      throw Error(ErrorCode::io, kOperation, whole_.string(), "is in the way: not a directory",
                  "move it away");
    }
    if (!fs::exists(whole_ / kManifestName)) {
      throw Error(ErrorCode::io, kOperation, whole_.string(), "is in the way: it has no manifest",
                  "move it away");
    }
    discard(replaced_);
    trace("aside");
    rename_path(whole_, replaced_);
    aside_ = true;
  }

  /// 6. The new checkpoint is on all disks, so a failure here is not one of the checkpoint: what
  /// could not be removed is left for the next save.
  void remove_old() {
    const auto seen = try_on_all_ranks(group_, kOperation, [this] {
      trace("look");
      return look_into(folder_);
    });
    if (seen.failure) return;
    const Inventory inventory(seen.by_rank);
    // All ranks wait for the end, or the probes of the next save would be taken for old ones.
    try_on_all_ranks(group_, kOperation, [&] {
      trace("prune");
      if (leads()) prune(folder_, inventory, group_.rank(), contents_.step, keep_);
      trace("end");
      return json();
    });
  }

  /// Runs `work` on all ranks. If one fails, leaves the folders as they were, and throws.
  std::vector<json> stage(const std::function<json()>& work) {
    RankResults results = try_on_all_ranks(group_, kOperation, work);
    if (results.failure) {
      if (leads()) take_back();
      throw Error(*results.failure);
    }
    return std::move(results.by_rank);
  }

  /// What cannot be undone is left for the next save.
  void take_back() noexcept {
    try {
      if (placed_) discard(whole_);
      if (aside_) rename_path(replaced_, whole_);
      if (made_) discard(partial_);
    } catch (const std::exception&) {
    }
  }

  bool leads() const { return leader_ == group_.rank(); }
  void trace(std::string_view what) const {
    if (trace_) trace_(what);
  }

  Group& group_;
  const fs::path folder_;
  const Contents& contents_;
  const int keep_;
  const Trace& trace_;
  const fs::path partial_;
  const fs::path whole_;
  const fs::path replaced_;
  std::optional<Probe> probe_;
  int leader_ = -1;  ///< of this rank's disk
  Manifest manifest_;
  // What this rank has done to its disk, and may have to undo.
  bool made_ = false;
  bool aside_ = false;
  bool placed_ = false;
};

}  // namespace

fs::path save(Group& group, const fs::path& folder, const Contents& contents, int keep,
              const Trace& trace) {
  return Saving(group, folder, contents, keep, trace).run();
}

}  // namespace dgc::checkpoint
