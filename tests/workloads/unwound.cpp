// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Exceptions through frames with and without destructors, in a thread and in main; for
// checks/stacks/unwinder.rs.
#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static volatile unsigned long sink;

struct Cleaned {
	std::string text;
	explicit Cleaned(int depth) : text(static_cast<size_t>(depth) + 20, 'x') {}
	~Cleaned() { sink = sink + text.size(); }
};

[[gnu::noinline]] static int thrower(int depth)
{
	Cleaned cleaned(depth);

	if (depth == 0)
		throw std::runtime_error("at the bottom");
	return thrower(depth - 1) + static_cast<int>(cleaned.text.size());
}

struct Shape {
	virtual ~Shape() = default;
	virtual double area(int depth) const = 0;
};

struct Square final : Shape {
	double side = 2;
	[[gnu::noinline]] double area(int depth) const override
	{
		return depth ? area(depth - 1) + side : side * side;
	}
};

[[gnu::noinline]] static void round()
{
	try {
		thrower(6);
	} catch (const std::exception &error) {
		sink = sink + std::string(error.what()).size();
	}
	std::map<std::string, int> names;
	std::ostringstream out;
	for (int i = 0; i < 20; i++)
		names[std::to_string(i * 7919 % 100)] = i;
	for (const auto &[name, number] : names)
		out << name << '=' << number * 0.5 << ';';
	std::vector<int> numbers(50);
	for (size_t i = 0; i < numbers.size(); i++)
		numbers[i] = static_cast<int>(i * 37 % 50);
	std::sort(numbers.begin(), numbers.end(), [](int a, int b) { return a > b; });
	Square square;
	const Shape &shape = square;
	sink = sink + static_cast<unsigned long>(shape.area(8)) + out.str().size();
}

int main()
{
	std::thread other([] {
		for (;;)
			round();
	});
	for (;;)
		round();
}
