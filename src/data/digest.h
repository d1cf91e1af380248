// MD5 of files, in hexadecimal as md5sum prints it. For finding damaged downloads, not for
// security.
#pragma once

#include <filesystem>
#include <string>

namespace dgc::data {

/// Throws Error(io) for a file that cannot be read.
std::string md5_of_file(const std::filesystem::path& file);

/// Of the contents: a gzipped file is unpacked on the way, any other is taken as it is. Throws
/// Error(io), also for a damaged gzip file.
std::string md5_of_contents(const std::filesystem::path& file);

}  // namespace dgc::data
