// A folder in which test_wire.py puts a model (model.txt: a line for each tensor, name and sizes)
// and the gradients of each rank (gradients.RANK: floats, step after step, tensor after tensor).
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dgc/engines.h"
#include "dgc/state.h"

namespace dgc::recorded {

class Folder {
 public:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {
    std::ifstream file(path_ / "model.txt");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      std::vector<std::int64_t> shape;
      for (std::int64_t size = 0; words >> size;) shape.push_back(size);
      model_.push_back(TensorSpec::of(name, shape));
    }
  }
  const std::vector<TensorSpec>& model() const { return model_; }
  std::filesystem::path file(const std::string& name) const { return path_ / name; }

  void write(const std::string& name, std::span<const std::byte> bytes) const {
    std::ofstream out(file(name), std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  }
  std::vector<std::byte> read(const std::string& name) const {
    std::vector<std::byte> bytes(std::filesystem::file_size(file(name)));
    std::ifstream in(file(name), std::ios::binary);
    in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  }

 private:
  std::filesystem::path path_;
  std::vector<TensorSpec> model_;
};

/// The gradients of one rank, step after step.
class Gradients {
 public:
  Gradients(const Folder& folder, int rank)
      : model_(folder.model()),
        file_(folder.file("gradients." + std::to_string(rank)), std::ios::binary) {}

  std::vector<std::vector<float>> next() {
    std::vector<std::vector<float>> all;
    for (const TensorSpec& spec : model_) {
      auto& values = all.emplace_back(spec.elements());
      file_.read(reinterpret_cast<char*>(values.data()),
                 static_cast<std::streamsize>(values.size() * sizeof(float)));
    }
    if (!file_) throw std::runtime_error("the gradients end early");
    return all;
  }

 private:
  const std::vector<TensorSpec>& model_;
  std::ifstream file_;
};

/// Calls run(group) for each rank, in a thread of its own. Throws what any of them threw.
template <typename Run>
void on_all_ranks(int workers, const Run& run) {
  const auto groups = make_local_groups(workers);
  std::vector<std::thread> threads;
  std::vector<std::string> errors(groups.size());
  for (std::size_t r = 0; r < groups.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        run(*groups[r]);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) throw std::runtime_error(error);
  }
}

}  // namespace dgc::recorded
