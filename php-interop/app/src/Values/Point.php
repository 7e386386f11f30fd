<?php

namespace App\Values;

final class Point
{
    public function __construct(public int $x, protected float $y) {}
}
