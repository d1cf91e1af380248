// The parts of check_data, one per kind of set. Each sets the kind and adds facts and problems;
// none throws for what is wrong with the data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/units.h"
#include "data/check.h"

namespace dgc::data {

void check_idx(const std::filesystem::path& folder, CheckedData& checked);
void check_cifar10(const std::filesystem::path& folder, CheckedData& checked);
void check_images(const std::filesystem::path& folder, const CheckOptions& options,
                  CheckedData& checked);

void check_ptb(const std::filesystem::path& folder, CheckedData& checked);
void check_text(const std::filesystem::path& folder, CheckedData& checked);
void check_bible(CheckedData& checked);
void check_linux_doc(const std::filesystem::path& folder, CheckedData& checked);
void check_an4(const std::filesystem::path& folder, const CheckOptions& options,
               CheckedData& checked);
void check_librispeech(const std::filesystem::path& folder, const CheckOptions& options,
                       CheckedData& checked);
void check_manifest(const std::filesystem::path& folder, const CheckOptions& options,
                    CheckedData& checked);
void check_asterisk(const CheckOptions& options, CheckedData& checked);

/// "1,234,567".
inline std::string with_commas(std::int64_t value) {
  return grouped(static_cast<std::uint64_t>(value));
}

/// Runs `work`; what it throws becomes a problem. False then.
bool attempt(CheckedData& checked, const std::function<void()>& work);

}  // namespace dgc::data
