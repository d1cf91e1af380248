// Options that several benchmarks have, spelled once.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace dgc::bench {

/// An option that shows its default and takes values from `low` to `high`.
template <typename Value, typename Limit>
CLI::Option* add_ranged(CLI::App* command, const char* name, Value& value, const char* help,
                        Limit low, Limit high) {
  return command->add_option(name, value, help)
      ->capture_default_str()
      ->check(CLI::Range(low, high));
}

inline void add_elements(CLI::App* command, std::uint64_t& elements, const char* help,
                         std::uint64_t least = 1) {
  add_ranged(command, "--elements", elements, help, least, std::uint64_t{1} << 31);
}

inline void add_ratio(CLI::App* command, double& ratio,
                      const char* help = "Share of the gradient's entries that is sent") {
  add_ranged(command, "--ratio", ratio, help, 1e-9, 1.0);
}

inline void add_values(CLI::App* command, std::string& values) {
  command
      ->add_option("--values", values,
                   "Number format of the entries: fp32, fp16, bf16, int8 or sign")
      ->capture_default_str();
}

inline void add_steps(CLI::App* command, int& steps, const char* help = "Steps to measure") {
  add_ranged(command, "--steps", steps, help, 1, 1'000'000);
}

inline void add_warmup(CLI::App* command, int& warmup) {
  add_ranged(command, "--warmup", warmup, "Steps before measuring begins", 0, 1'000'000);
}

inline void add_output(CLI::App* command, bool& as_json, bool& quiet) {
  command->add_flag("--json", as_json, "Print an array of JSON objects");
  command->add_flag("--quiet", quiet, "Print no progress");
}

}  // namespace dgc::bench
