<?php

namespace App\Jobs;

use App\Values\Labelled;
use App\Values\Point;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Value objects in properties and arrays. */
class NestedObjects implements ShouldQueue
{
    use Queued;

    public Point $point;

    public array $shapes;

    public function __construct()
    {
        $this->point = new Point(1, 2.5);
        $this->shapes = [
            'line' => [new Point(0, 0.0), new Point(3, 4.0)],
            'labelled' => new Labelled('here', new Point(-1, -1.5), ['a' => ['b' => new Point(9, 9.25)]]),
            'loose' => (object) ['x' => 1, 'with space' => 2, '7' => 'seven'],
            'empty' => new \stdClass,
        ];
    }
}
