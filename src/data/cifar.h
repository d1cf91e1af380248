// CIFAR-10's binary version: records of a label byte and 3 x 32 x 32 bytes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/images.h"

namespace dgc::data {

/// 50,000 images of `data_batch_{1..5}.bin`, or the 10,000 of `test_batch.bin`, in `folder` or in
/// `cifar-10-batches-bin` inside it. Throws Error: io (no such file, unreadable), truncated,
/// trailing_bytes, index_out_of_range (a label).
ImageSet load_cifar10(const std::filesystem::path& folder, bool train);

/// The files of one half, by name.
std::vector<std::string> cifar10_files(bool train);
/// `folder`, or `cifar-10-batches-bin` inside it where that is.
std::filesystem::path cifar10_folder(const std::filesystem::path& folder);

}  // namespace dgc::data
