// A checkpoint as one looks at it, without a group.
#include <algorithm>

#include "base/file.h"
#include "checkpoint/disk.h"
#include "checkpoint/folder.h"
#include "checkpoint/survey.h"

namespace dgc::checkpoint {

namespace fs = std::filesystem;

Description describe(const fs::path& directory) {
  Description description;
  description.path = directory;
  if (!fs::is_directory(directory)) {
    throw Error(ErrorCode::io, "describe checkpoint", directory.string(), "is not a directory");
  }
  try {
    description.manifest = read_manifest(directory);
  } catch (const Error& error) {
    description.damage = error;
    return description;
  }
  const Manifest& manifest = description.manifest;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    Description::File& file = description.files.emplace_back();
    file.entry = manifest.files[i];
    const fs::path path = directory / file.entry.name;
    const auto& here = manifest.ranks_here;
    const bool belongs = i < manifest.shared_files() ||
                         std::find(here.begin(), here.end(),
                                   static_cast<int>(i - manifest.shared_files())) != here.end();
    file.elsewhere = !belongs && !fs::exists(path);
    if (file.elsewhere) continue;
    try {
      const MappedFile mapped(path);
      check_bytes(mapped.contents(), file.entry, path.string());
    } catch (const Error& error) {
      file.damage = error;
      if (!description.damage) description.damage = error;
    }
  }
  return description;
}

std::vector<fs::path> list(const fs::path& folder) {
  std::vector<Sighting> sightings = look(folder);
  std::sort(sightings.begin(), sightings.end(), [](const Sighting& a, const Sighting& b) {
    return a.step != b.step ? a.step > b.step : a.stage < b.stage;
  });
  std::vector<fs::path> paths;
  for (const Sighting& sighting : sightings) paths.emplace_back(sighting.path);
  return paths;
}

}  // namespace dgc::checkpoint
