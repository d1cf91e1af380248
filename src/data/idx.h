// IDX files, the format of MNIST and of the sets made in its image: a big-endian header, then
// bytes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "data/images.h"

namespace dgc::data {

/// The images and labels of one half of a set: of `train-images-idx3-ubyte` and
/// `train-labels-idx1-ubyte`, or of `t10k-…`. Each file may be gzipped (`.gz`) and may be spelt
/// with a dot (`train-images.idx3-ubyte`). One channel, 10 classes named "0" to "9".
/// Throws Error: io (no such file, unreadable), bad_magic (not IDX of bytes), truncated,
/// trailing_bytes, bad_count (no images, or images and labels differ in number),
/// index_out_of_range (a label), limit_exceeded (over 2 GiB unpacked).
ImageSet load_idx(const std::filesystem::path& folder, bool train);

/// "train-images-idx3-ubyte" and so on.
struct IdxNames {
  std::string images;
  std::string labels;
};
IdxNames idx_names(bool train);

/// The file of one of these names in `folder`, in any of its spellings.
std::optional<std::filesystem::path> find_idx(const std::filesystem::path& folder,
                                              const std::string& name);

}  // namespace dgc::data
