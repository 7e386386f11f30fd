<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Floats that are hard to write as text. */
class Floats implements ShouldQueue
{
    use Queued;

    public float $default = 1.5;

    public float $whole = 0.5;

    public array $floats;

    public function __construct()
    {
        $this->whole = 3.0;
        $this->floats = [
            0.1, 1.0, -1.0, 0.0, -0.0, 1e25, -1e25, 1e22, 1e21, 123456789012345678.0, 1e15, 1e16, 1e17, 1e-7, 1.5e-7,
            5e-324, PHP_FLOAT_MIN, PHP_FLOAT_MAX, -PHP_FLOAT_MAX, PHP_FLOAT_EPSILON,
            INF, -INF, NAN, 0.1 + 0.2, 1 / 3, M_PI, 100.0, 1e100, 9007199254740993.0,
        ];
    }
}
