#include "base/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <system_error>

#include "dgc/error.h"

namespace dgc {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder(const std::string& prefix, fs::path parent) {
  std::error_code error;
  if (parent.empty()) parent = fs::temp_directory_path(error);
  std::string name = (parent / (prefix + "XXXXXX")).string();
  if (!error && ::mkdtemp(name.data()) == nullptr) error.assign(errno, std::generic_category());
  if (error) {
    throw Error(ErrorCode::io, "temporary folder", name, "cannot make it: " + error.message(),
                "set TMPDIR to a folder that you may write to");
  }
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace dgc
