// The data sets that the recipes can use, where they are on this machine and how to get them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dgc::data {

/// A file that the publisher offers, with the MD5 that is published for it.
struct DataArchive {
  std::string name;
  std::string md5;
};

struct DataSet {
  std::string name;                                ///< as in `dgc data` and $DGC_DATA/<name>
  std::vector<std::string> recipes;                ///< of `dgc train`
  std::string what;                                ///< one line
  std::string size;                                ///< to download, as text
  std::string package = {};                        ///< Debian packages, or ""
  std::string page = {};                           ///< the publisher's, or ""
  std::string how;                                 ///< what to type or do to get it
  std::vector<std::filesystem::path> places = {};  ///< where it is looked for after $DGC_DATA
  /// Comes with Debian's packages only: all of `places` are needed, $DGC_DATA is not looked in.
  bool package_only = false;
  std::vector<DataArchive> archives = {};  ///< those with a published MD5
  std::string licence;
};

const std::vector<DataSet>& catalogue();

/// Throws Error(invalid_argument) with the nearest name for one that is not in the catalogue.
const DataSet& data_set(const std::string& name);

/// Where a set is on this machine: `given` when that is not empty, else $DGC_DATA/<name>, else the
/// first of its places (of a set that comes with packages only: if all of them are there). Throws
/// Error(io) naming what was looked for and how to get it; invalid_argument for an unknown name.
std::filesystem::path find_data(const std::string& name, const std::filesystem::path& given = {});

/// The same without `given` and without an error.
std::optional<std::filesystem::path> find_data_quietly(const std::string& name);

}  // namespace dgc::data
