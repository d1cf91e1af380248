// SQLite, as far as the hub needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct sqlite3;
struct sqlite3_stmt;

namespace dgc::hub {

/// One SQL statement, with ? for values that are given by bind().
class Statement {
 public:
  Statement(sqlite3* database, std::string_view sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  /// The next ?.
  Statement& bind(std::int64_t value);
  Statement& bind(std::uint64_t value) { return bind(static_cast<std::int64_t>(value)); }
  Statement& bind(double value);
  Statement& bind(std::string_view value);
  Statement& bind(std::span<const std::byte> value);
  Statement& bind_null();

  /// True where there is a row.
  bool step();
  void run() { step(); }

  std::int64_t integer(int column) const;
  double real(int column) const;
  bool is_null(int column) const;
  std::string text(int column) const;
  std::vector<std::byte> blob(int column) const;

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

/// A file in WAL mode. What a transaction wrote is on the disk when commit() returns. Errors are
/// Error(io) that names the file.
class Database {
 public:
  /// Makes the file if `create`, for its owner alone. ":memory:" is none.
  Database(const std::filesystem::path& file, bool create);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void execute(const char* sql);
  sqlite3* get() const noexcept { return handle_; }

 private:
  sqlite3* handle_ = nullptr;
};

/// Rolled back unless committed.
class Transaction {
 public:
  explicit Transaction(Database& database) : database_(database) {
    database_.execute("BEGIN IMMEDIATE");
  }
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Database& database_;
  bool done_ = false;
};

}  // namespace dgc::hub
