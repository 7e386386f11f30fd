<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Integers up to the largest. */
class Integers implements ShouldQueue
{
    use Queued;

    public int $max = 0;

    public array $integers;

    public function __construct()
    {
        $this->max = PHP_INT_MAX;
        $this->integers = [
            0, 1, -1, 255, 256, 2147483647, 2147483648, -2147483649, 4294967296,
            9007199254740991, 9007199254740992, 9007199254740993, -9007199254740993,
            100000000000000, 1795207848123456789, PHP_INT_MAX, PHP_INT_MIN,
        ];
    }
}
