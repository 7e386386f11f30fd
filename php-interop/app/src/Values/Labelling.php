<?php

namespace App\Values;

class Labelling
{
    private string $secret = 'secret';

    public function __construct(public string $label) {}
}
