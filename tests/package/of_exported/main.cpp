// SPDX-License-Identifier: MIT
bool stranger_is_alone();

int main() { return stranger_is_alone() ? 0 : 1; }
