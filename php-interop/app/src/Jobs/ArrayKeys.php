<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Arrays of every shape. */
class ArrayKeys implements ShouldQueue
{
    use Queued;

    public array $gaps;

    public array $arrays;

    public function __construct()
    {
        $this->gaps = [3 => 'three', 5 => 'five'];
        $this->arrays = [
            'empty' => [],
            'list' => ['a', 'b'],
            'one' => [1 => 'one'],
            'backwards' => [1 => 'b', 0 => 'a'],
            'negative' => [-5 => 'minus five', 0 => 'zero'],
            'numeric text' => ['01' => 'a', '1' => 'b', '1.5' => 'c', '-0' => 'd', ' 1' => 'e', '9223372036854775808' => 'f'],
            'empty key' => ['' => 'nothing'],
            'mixed' => [0 => 'zero', 'one' => 1, 1 => 'uno'],
            'nested empties' => [[], [[]], ['x' => []]],
            'signs' => ['a/b' => 1, 'c~d' => 2, '$class' => 'mine', '$ref' => '#', '' => ['' => []]],
            'nulls' => [null, null],
            'booleans' => [true, false],
            PHP_INT_MAX => 'last',
        ];
    }
}
